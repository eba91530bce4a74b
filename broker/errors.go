package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/wire"
)

// Kafka's error codes, as far as they are used here.
const (
	noError                    int16 = 0
	offsetOutOfRange           int16 = 1
	corruptMessage             int16 = 2
	unknownTopicOrPartition    int16 = 3
	leaderNotAvailable         int16 = 5
	notLeaderOrFollower        int16 = 6
	requestTimedOut            int16 = 7
	messageTooLarge            int16 = 10
	offsetMetadataTooLarge     int16 = 12
	coordinatorNotAvailable    int16 = 15
	invalidTopic               int16 = 17
	invalidRequiredAcks        int16 = 21
	illegalGeneration          int16 = 22
	unknownMemberID            int16 = 25
	topicAuthorizationFailed   int16 = 29
	groupAuthorizationFailed   int16 = 30
	clusterAuthorizationFailed int16 = 31
	invalidTimestamp           int16 = 32
	unsupportedSASLMechanism   int16 = 33
	illegalSASLState           int16 = 34
	unsupportedVersion         int16 = 35
	topicAlreadyExists         int16 = 36
	invalidPartitions          int16 = 37
	invalidReplicationFactor   int16 = 38
	invalidRequest             int16 = 42
	unsupportedForFormat       int16 = 43
	outOfOrderSequence         int16 = 45
	invalidProducerEpoch       int16 = 47
	invalidTxnState            int16 = 48
	invalidProducerIDMapping   int16 = 49
	invalidTransactionTimeout  int16 = 50
	concurrentTransactions     int16 = 51
	txnIDAuthorizationFailed   int16 = 53
	kafkaStorageError          int16 = 56
	saslAuthenticationFailed   int16 = 58
	fetchSessionIDNotFound     int16 = 70
	invalidFetchSessionEpoch   int16 = 71
	fencedLeaderEpoch          int16 = 74
	unknownLeaderEpoch         int16 = 75
	invalidRecord              int16 = 87
	producerFenced             int16 = 90
	unknownTopicID             int16 = 100
	inconsistentTopicID        int16 = 103
	fetchSessionTopicIDError   int16 = 106
)

// refusal is why records were not taken, in the client's terms.
type refusal struct {
	code int16
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int16, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// ErrorCode is Kafka's error code that tells a client best what an error of the mirror package means for it; retriable where asking again
// may help, 0 for nil, and READ_ONLY_TOPIC for what the write gate refuses. Brokers with an append path of their own answer with it
// when BeginWrite refuses.
func ErrorCode(err error) int16 {
	code, _ := errorCode(err)
	return code
}

// errorCode also says whether the error is one that is expected of the mirror package, rather than the host's own.
func errorCode(err error) (code int16, known bool) {
	var refused *refusal
	var readOnly *mirror.ReadOnlyError
	switch {
	case err == nil:
		return noError, true
	case errors.As(err, &refused):
		return refused.code, true
	case errors.As(err, &readOnly):
		return int16(wire.ReadOnlyTopic), true
	case errors.Is(err, mirror.ErrUnknownPartition):
		return unknownTopicOrPartition, true
	case errors.Is(err, mirror.ErrOutOfRange):
		return offsetOutOfRange, true
	case errors.Is(err, mirror.ErrClosed), errors.Is(err, mirror.ErrFenced):
		return notLeaderOrFollower, true
	case errors.Is(err, batch.ErrOldFormat):
		return unsupportedForFormat, true
	case errors.Is(err, batch.ErrCorrupt):
		return corruptMessage, true
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return requestTimedOut, true
	}
	return kafkaStorageError, false
}

func (b *Broker) code(err error) int16 {
	code, known := errorCode(err)
	if !known {
		b.log.Error("the host failed", "err", err)
	}
	return code
}
