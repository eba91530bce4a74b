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

// code is the error code that tells a client best what err means for it; retriable where asking again may help.
func (b *Broker) code(err error) int16 {
	var refused *refusal
	var readOnly *mirror.ReadOnlyError
	switch {
	case err == nil:
		return noError
	case errors.As(err, &refused):
		return refused.code
	case errors.As(err, &readOnly):
		return int16(wire.ReadOnlyTopic)
	case errors.Is(err, mirror.ErrUnknownPartition):
		return unknownTopicOrPartition
	case errors.Is(err, mirror.ErrOutOfRange):
		return offsetOutOfRange
	case errors.Is(err, mirror.ErrClosed):
		return notLeaderOrFollower
	case errors.Is(err, batch.ErrOldFormat):
		return unsupportedForFormat
	case errors.Is(err, batch.ErrCorrupt):
		return corruptMessage
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return requestTimedOut
	}
	b.log.Error("the host failed", "err", err)
	return kafkaStorageError
}
