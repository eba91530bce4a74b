package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/segmentio/kafka-go"
)

var (
	// ErrClosed is returned by everything that is used after its Close, or interrupted by it.
	ErrClosed = errors.New("wire: closed")
	// ErrProtocol is wrapped by every finding that an answer makes no sense. Where it concerns the whole answer, the
	// connection has been closed.
	ErrProtocol = errors.New("the answer breaks the Kafka protocol")
	// ErrVersion is matched by a VersionError.
	ErrVersion = errors.New("the broker does not speak a needed version")
)

// Error is what went wrong between us and one address. It never holds credentials.
type Error struct {
	Addr string // host:port that was dialled
	Op   string // what was tried, in words
	Hint string // the likely cause and what to do, or empty
	Err  error
}

func (e *Error) Error() string {
	s := e.Op + " " + e.Addr + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// VersionError says that a broker and this package have no version of a request in common, or none that is new enough.
type VersionError struct {
	Addr          string
	Request       string
	Min, Max      int16 // what the broker speaks; -1: not at all
	Needed, Known int16 // what would do
}

func (e *VersionError) Error() string {
	speaks := fmt.Sprintf("speaks %s versions %d to %d", e.Request, e.Min, e.Max)
	if e.Max < 0 {
		speaks = "does not speak " + e.Request
	}
	s := fmt.Sprintf("broker %s %s, needed is one of %d to %d", e.Addr, speaks, e.Needed, e.Known)
	if e.Max >= 0 && e.Max < e.Needed {
		s += "; Apache Kafka has it from 2.1 on"
	}
	return s
}

func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// UnknownBrokerError says that no metadata has named the broker yet.
type UnknownBrokerError struct{ Broker int32 }

func (e *UnknownBrokerError) Error() string {
	return fmt.Sprintf("address of broker %d is not known; metadata must be refreshed", e.Broker)
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Code is an error code of the protocol that kafka-go has no name for. errors.Is matches it with the kafka.Error of the same
// number.
type Code int16

func (c Code) Error() string {
	if name := codeNames[c]; name != "" {
		return fmt.Sprintf("[%d] %s", int16(c), name)
	}
	return fmt.Sprintf("[%d] an error code that is not known here", int16(c))
}

func (c Code) Is(target error) bool {
	e, ok := target.(kafka.Error)
	return ok && int16(e) == int16(c)
}

var codeNames = map[Code]string{
	109: "OFFSET_MOVED_TO_TIERED_STORAGE",
	129: "REBOOTSTRAP_REQUIRED",

	ReadOnlyTopic:             "READ_ONLY_TOPIC",
	MirrorAlreadyExists:       "CLUSTER_MIRROR_ALREADY_EXISTS",
	UnknownMirror:             "UNKNOWN_CLUSTER_MIRROR",
	TopicAlreadyInMirror:      "TOPIC_ALREADY_IN_CLUSTER_MIRROR",
	TopicNotInMirror:          "TOPIC_NOT_IN_CLUSTER_MIRROR",
	MirrorTopicAlreadyPaused:  "MIRROR_TOPIC_ALREADY_PAUSED",
	MirrorTopicNotPaused:      "MIRROR_TOPIC_NOT_PAUSED",
	MirrorTopicBeingStopped:   "MIRROR_TOPIC_BEING_STOPPED",
	MirrorNotEmpty:            "CLUSTER_MIRROR_NOT_EMPTY",
	MirrorAuthorizationFailed: "CLUSTER_MIRROR_AUTHORIZATION_FAILED",
	InvalidMirrorState:        "INVALID_CLUSTER_MIRROR_STATE",
	MirrorTopicNotStopped:     "MIRROR_TOPIC_NOT_STOPPED",
}

// CodeError is the error for a code in an answer, nil for 0: a kafka.Error where kafka-go knows it, else a Code.
func CodeError(code int16) error {
	switch {
	case code == 0:
		return nil
	case kafka.Error(code).Title() != "":
		return kafka.Error(code)
	}
	return Code(code)
}

// Lost tells a connection that broke from a broker that answered nonsense, or not at all.
func Lost(err error) bool {
	var e *Error
	return errors.As(err, &e) && !errors.Is(err, ErrProtocol) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// The phases of a connection's life in which the same symptom has another cause.
type phase int

const (
	dialling phase = iota
	handshaking
	negotiating // the first exchange
	authenticating
	first // the first request after the above
	later
)

// hint guesses what is behind an error.
func hint(at phase, err error, withTLS, withSASL bool) string {
	var (
		dns       *net.DNSError
		record    tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		remote    *net.OpError
	)
	hungUp := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
	switch {
	case errors.As(err, &dns):
		return "the host name does not resolve: is it right, and known on this machine?"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: is the broker up, and are host and port right?"
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		switch at {
		case dialling:
			return "no answer: the host may be down, or a firewall may drop the packets"
		case negotiating:
			return "something listens there but does not answer: is it a Kafka broker's port?"
		}
		return "the connection stands but no answer came in time"
	case errors.As(err, &record):
		return "the listener speaks no TLS: leave Transport.TLS nil, or use the port of its TLS listener"
	case errors.As(err, &authority):
		return "the broker's certificate is signed by an authority that Transport.TLS does not trust: set its RootCAs"
	case errors.As(err, &host):
		return "the broker's certificate is for another name: use that name as the address, or set Transport.TLS.ServerName"
	case errors.As(err, &invalid):
		return "the broker's certificate is not valid: has it expired, is this machine's clock right?"
	case errors.As(err, &remote) && remote.Op == "remote error": // how crypto/tls passes an alert on
		return "the broker refused the TLS handshake: it may want a client certificate, or other TLS versions"
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		return "the listener does not offer this SASL mechanism"
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		return "the broker refused the credentials"
	case errors.Is(err, kafka.IllegalSASLState):
		return "the listener wants no SASL: leave Transport.SASL nil, or use the port of its SASL listener"
	case !hungUp:
		return ""
	case at == handshaking:
		return "the listener hung up on the TLS handshake: it may speak no TLS, or not be a Kafka broker"
	case at == negotiating && withTLS:
		return "the listener hung up on the first request: it may want a client certificate, or not be a Kafka broker"
	case at == negotiating:
		return "the listener hung up on the first request: it may want TLS (Transport.TLS), or not be a Kafka broker"
	case at == authenticating:
		return "the broker hung up during authentication: it may refuse the credentials"
	case at == first && !withSASL:
		return "the broker hung up on the first request: its listener may want SASL (Transport.SASL)"
	}
	return ""
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// greeting guesses from the first bytes of what should be an answer who sent them.
func greeting(b []byte) string {
	switch {
	case len(b) >= 2 && (b[0] == 0x15 || b[0] == 0x16) && b[1] == 0x03:
		return "the listener speaks TLS: set Transport.TLS, or use the port of its plain listener"
	case strings.HasPrefix(string(b), "HTTP"):
		return "an HTTP server answers there: is the port right?"
	case strings.HasPrefix(string(b), "SSH-"):
		return "an SSH server answers there: is the port right?"
	}
	return "is it a Kafka broker's port?"
}
