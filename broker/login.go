package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	anonymous      = "User:ANONYMOUS"
	mechanismPlain = "PLAIN"
)

// login is how far a connection has come in saying who is behind it.
type login struct {
	done      bool
	handshake bool
	principal string
}

var errLogIn = errors.New("request before login, or login refused")

// handle answers what belongs to the login; nil for other requests once the login is done. An error ends the connection.
func (l *login) handle(plain func(user, password string) bool, req kmsg.Request) (kmsg.Response, error) {
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return nil, nil
	case *kmsg.SASLHandshakeRequest:
		if plain == nil {
			return nil, nil // says which mechanisms there are: none
		}
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.SupportedMechanisms = []string{mechanismPlain}
		if l.handshake = req.Mechanism == mechanismPlain; !l.handshake {
			resp.ErrorCode = unsupportedSASLMechanism
		}
		return resp, nil
	case *kmsg.SASLAuthenticateRequest:
		if plain == nil {
			return nil, nil
		}
		return l.authenticate(plain, req)
	}
	if !l.done {
		return nil, errLogIn
	}
	return nil, nil
}

func (l *login) authenticate(plain func(user, password string) bool, req *kmsg.SASLAuthenticateRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
	refuse := func(code int16, why string) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, &why
		return resp, nil
	}
	if !l.handshake {
		return refuse(illegalSASLState, "SaslHandshake comes first")
	}
	l.handshake = false
	user, password, err := parsePlain(req.SASLAuthBytes)
	if err != nil || !plain(user, password) {
		return refuse(saslAuthenticationFailed, "Authentication failed: invalid username or password")
	}
	// Logging in again may not change who is behind the connection.
	principal := "User:" + user
	if l.done && principal != l.principal {
		return refuse(saslAuthenticationFailed, "Authentication failed: another user")
	}
	l.done, l.principal = true, principal
	return resp, nil
}

// parsePlain takes apart RFC 4616: [authorization identity] NUL user NUL password.
func parsePlain(b []byte) (user, password string, err error) {
	parts := bytes.Split(b, []byte{0})
	if len(parts) != 3 || len(parts[1]) == 0 {
		return "", "", fmt.Errorf("PLAIN message has %d parts", len(parts))
	}
	if len(parts[0]) > 0 && !bytes.Equal(parts[0], parts[1]) {
		return "", "", errors.New("PLAIN message asks to act for another user")
	}
	return string(parts[1]), string(parts[2]), nil
}

// saslHandshake answers where nobody is asked to log in.
func (b *Broker) saslHandshake(_ context.Context, _ *call, _ *kmsg.SASLHandshakeRequest, resp *kmsg.SASLHandshakeResponse) {
	resp.ErrorCode = unsupportedSASLMechanism
}

func (b *Broker) saslAuthenticate(_ context.Context, _ *call, _ *kmsg.SASLAuthenticateRequest, resp *kmsg.SASLAuthenticateResponse) {
	resp.ErrorCode = illegalSASLState
}
