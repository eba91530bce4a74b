package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestOldBrokerIsAskedForItsVersionsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		var asked []int16
		c.serve = func(_ string, p *peer) {
			for p.next() {
				switch req := p.req.(type) {
				case *kmsg.ApiVersionsRequest:
					asked = append(asked, req.Version)
					resp := speaks(map[kmsg.Key]int16{kmsg.Metadata: 7})
					if req.Version > 2 {
						resp.ErrorCode = int16(kafka.UnsupportedVersion)
					}
					p.answer(resp)
				default:
					p.answer(metadata())
				}
			}
		}
		m, err := newClient(t, &c).Metadata(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, "the-cluster", m.ClusterID)
		require.Equal(t, []int16{3, 0}, asked)
	})
}

func TestConnectionsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) { p.handle(modern(), nil) }
		client := newClient(t, &c)
		for range 3 {
			_, err := client.Metadata(t.Context(), nil)
			require.NoError(t, err)
		}
		dialled, open := c.count()
		require.Equal(t, []int{1, 1}, []int{dialled, open})

		time.Sleep(defaultIdleTimeout + time.Second) // nobody asks anything; virtual
		_, err := client.Metadata(t.Context(), nil)
		require.NoError(t, err)
		synctest.Wait()
		dialled, open = c.count()
		require.Equal(t, []int{2, 1}, []int{dialled, open}, "one that was idle for too long is not trusted, and closed")

		client.Close()
		synctest.Wait()
		_, open = c.count()
		require.Zero(t, open)
		_, err = client.Metadata(t.Context(), nil)
		require.Equal(t, ErrClosed, err)
		client.Close()
	})
}

func TestIdleConnectionThatTheBrokerClosedIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) {
			p.next()
			p.answer(speaks(modern()))
			p.next()
			p.answer(metadata())
		}
		client := newClient(t, &c)
		for range 3 {
			_, err := client.Metadata(t.Context(), nil)
			require.NoError(t, err)
			synctest.Wait()
		}
		dialled, _ := c.count()
		require.Equal(t, 3, dialled)
	})
}

func TestEveryAddressIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		alive := map[string]bool{"boot-2:9092": true, "broker-3:9092": true}
		c.serve = func(addr string, p *peer) {
			if alive[addr] {
				p.handle(modern(), nil)
			}
		}
		client := New(Config{Addr: kafka.TCP("boot-1:9092", "boot-2:9092"), Transport: c.transport()})
		defer client.Close()
		_, err := client.Metadata(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, []string{"boot-1:9092", "boot-2:9092"}, c.dials)

		delete(alive, "boot-2:9092")
		time.Sleep(time.Minute) // virtual: what is known grows old
		_, err = client.Metadata(t.Context(), nil)
		require.NoError(t, err, "the bootstrap brokers are gone, metadata named others")
		require.Equal(t, []string{"boot-2:9092", "boot-1:9092", "broker-1:9092", "broker-2:9092", "broker-3:9092"}, c.dials[2:])

		clear(alive)
		time.Sleep(time.Minute) // virtual: what is known grows old
		_, err = client.Metadata(t.Context(), nil)
		require.ErrorContains(t, err, "boot-1:9092")
		require.ErrorContains(t, err, "broker-2:9092")
	})
	_, err := New(Config{}).Metadata(t.Context(), nil)
	require.ErrorContains(t, err, "no bootstrap broker")
}

func TestSilentPeerDelaysNoLongerThanTheDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) { p.next(); p.next() } // takes requests and says nothing
		client := newClient(t, &c, func(cfg *Config) { cfg.Transport.DialTimeout = 3 * time.Second })
		start := time.Now()
		err := client.Session(1).Send(t.Context(), limits)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorContains(t, err, "ApiVersions to broker-1:9092: not ready in time (something listens there but does not answer")
		synctest.Wait()
		_, open := c.count()
		require.Zero(t, open)
	})
}

func TestCloseInterruptsDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := New(Config{Addr: kafka.TCP("boot:9092"), Transport: &kafka.Transport{
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		}})
		failed := make(chan error)
		go func() {
			_, err := client.Metadata(t.Context(), nil)
			failed <- err
		}()
		synctest.Wait()
		go client.Close()
		require.ErrorIs(t, <-failed, ErrClosed)
	})
}

type fixedResolver []net.IPAddr

func (r fixedResolver) LookupBrokerIPAddr(context.Context, kafka.Broker) ([]net.IPAddr, error) {
	return r, nil
}

func TestResolverGivesTheAddressesToDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(addr string, p *peer) { p.handle(modern(), nil) }
		resolver := fixedResolver{{IP: net.IPv4(10, 0, 0, 7)}, {IP: net.IPv6loopback}}
		client := newClient(t, &c, func(cfg *Config) { cfg.Transport.Resolver = resolver })
		_, err := client.Metadata(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, []string{"10.0.0.7:9092"}, c.dials)

		none := newClient(t, &c, func(cfg *Config) { cfg.Transport.Resolver = fixedResolver{} })
		_, err = none.Metadata(t.Context(), nil)
		require.ErrorContains(t, err, "the host name does not resolve")
	})
}

// script is a SASL mechanism of several steps.
type script3 struct{ steps int }

func (m script3) Name() string { return "SCRIPT" }
func (m script3) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	where := sasl.MetadataFromContext(ctx)
	return &script3{m.steps}, []byte("hello " + where.Host), nil
}
func (m *script3) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if string(challenge) == "wrong" {
		return false, nil, errors.New("the server does not know the secret")
	}
	m.steps--
	return m.steps == 0, append([]byte("re:"), challenge...), nil
}

func TestSASL(t *testing.T) {
	const secret = "correct horse"
	handshake := func(code kafka.Error) *kmsg.SASLHandshakeResponse {
		resp := kmsg.NewPtrSASLHandshakeResponse()
		resp.ErrorCode, resp.SupportedMechanisms = int16(code), []string{"SCRAM-SHA-512", "GSSAPI"}
		return resp
	}
	step := func(code kafka.Error, bytes string) *kmsg.SASLAuthenticateResponse {
		resp := kmsg.NewPtrSASLAuthenticateResponse()
		resp.ErrorCode, resp.SASLAuthBytes = int16(code), []byte(bytes)
		resp.ErrorMessage = kmsg.StringPtr("you sent " + secret)
		resp.SessionLifetimeMillis = 3000
		return resp
	}
	password := plain.Mechanism{Username: "me", Password: secret}
	for _, tc := range []struct {
		name      string
		mechanism sasl.Mechanism
		answers   []kmsg.Response // nil: hangs up
		sent      []string
		fails     string
	}{
		{"one step", password, []kmsg.Response{handshake(0), step(0, "")}, []string{"\x00me\x00" + secret}, ""},
		{"three steps", script3{3}, []kmsg.Response{handshake(0), step(0, "1"), step(0, "2"), step(0, "3")},
			[]string{"hello broker-1", "re:1", "re:2"}, ""},
		{"credentials refused", password, []kmsg.Response{handshake(0), step(kafka.SASLAuthenticationFailed, "")},
			[]string{"\x00me\x00" + secret}, "the broker refused the credentials"},
		{"hung up", password, []kmsg.Response{handshake(0), nil}, []string{"\x00me\x00" + secret},
			"the broker hung up during authentication: it may refuse the credentials"},
		{"mechanism refused", password, []kmsg.Response{handshake(kafka.UnsupportedSASLMechanism)}, nil,
			`it offers "SCRAM-SHA-512, GSSAPI" (the listener does not offer this SASL mechanism)`},
		{"not wanted", password, []kmsg.Response{handshake(kafka.IllegalSASLState)}, nil, "the listener wants no SASL"},
		{"the broker is refused", script3{3}, []kmsg.Response{handshake(0), step(0, "wrong")}, []string{"hello broker-1"},
			"SASL SCRIPT with broker-1:9092: the server does not know the secret"},
		{"without end", script3{1000}, append([]kmsg.Response{handshake(0)}, repeat(step(0, "more"), maxSASLSteps)...), nil,
			"the dialogue does not end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c cluster
				var sent []string
				c.serve = func(_ string, p *peer) {
					next := 0
					p.handle(modern(), func(req kmsg.Request) kmsg.Response {
						if auth, ok := req.(*kmsg.SASLAuthenticateRequest); ok {
							sent = append(sent, string(auth.SASLAuthBytes))
						}
						if next == len(tc.answers) {
							return answerTo(0, 0)
						}
						next++
						return tc.answers[next-1]
					})
				}
				client := newClient(t, &c, func(cfg *Config) { cfg.Transport.SASL = tc.mechanism })
				err := client.Session(1).Send(t.Context(), limits)
				if tc.sent != nil {
					require.Equal(t, tc.sent, sent)
				}
				if tc.fails == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, tc.fails)
				require.NotContains(t, err.Error(), secret)
				synctest.Wait()
				_, open := c.count()
				require.Zero(t, open)
			})
		})
	}
}

func repeat(r kmsg.Response, n int) (list []kmsg.Response) {
	for range n {
		list = append(list, r)
	}
	return list
}

func TestRefusedCredentialsAreNotTriedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) {
			p.handle(modern(), func(req kmsg.Request) kmsg.Response {
				if _, ok := req.(*kmsg.SASLHandshakeRequest); ok {
					return kmsg.NewPtrSASLHandshakeResponse()
				}
				resp := kmsg.NewPtrSASLAuthenticateResponse()
				resp.ErrorCode = int16(kafka.SASLAuthenticationFailed)
				return resp
			})
		}
		client := newClient(t, &c, func(cfg *Config) { cfg.Transport.SASL = plain.Mechanism{} })
		_, err := client.Metadata(t.Context(), nil)
		require.ErrorIs(t, err, kafka.SASLAuthenticationFailed)
		dialled, _ := c.count()
		require.Equal(t, 1, dialled, "or the account is locked sooner")
	})
}

// certificate makes a self-signed one for localhost, and a pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &secret.PublicKey, secret)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: secret}, pool
}

// listen serves connections of a loopback port, and gives host:port.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "localhost:" + port
}

func TestCauseOfAFailedConnectionIsGuessed(t *testing.T) {
	cert, trusted := certificate(t)
	kafkaPlain := func(c net.Conn) { (&peer{Conn: c}).handle(modern(), nil) }
	// Kafka takes the first bytes of a TLS handshake for a length far beyond its limit.
	strictPlain := func(c net.Conn) {
		head := make([]byte, 4)
		if c.Read(head); head[0] != 0 {
			return
		}
	}
	kafkaTLS := func(c net.Conn) {
		kafkaPlain(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}))
	}
	mutualTLS := func(c net.Conn) {
		kafkaPlain(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert}))
	}
	saslOnly := func(c net.Conn) {
		p := &peer{Conn: c}
		p.next()
		p.answer(speaks(modern()))
		p.next()
	}
	web := func(c net.Conn) {
		l := &oneListener{c: c}
		http.Serve(l, http.NotFoundHandler())
	}
	impatientWeb := func(c net.Conn) {
		c.Write([]byte("HTTP/1.1 408 Request Timeout\r\n\r\n"))
		c.Read(make([]byte, 1))
	}
	alert := func(c net.Conn) {
		c.Read(make([]byte, 1<<10))
		c.Write([]byte{0x15, 3, 3, 0, 2, 2, 10})
	}
	closed := func() string {
		l, err := net.Listen("tcp", "localhost:0")
		require.NoError(t, err)
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return "localhost:" + port
	}()
	withTLS := &tls.Config{RootCAs: trusted}
	for _, tc := range []struct {
		name string
		addr string
		tls  *tls.Config
		hint string
	}{
		{"works", listen(t, kafkaPlain), nil, ""},
		{"works over TLS", listen(t, kafkaTLS), withTLS, ""},
		{"TLS missing, alert", listen(t, alert), nil, "the listener speaks TLS: set Transport.TLS"},
		{"TLS missing, hangs up", listen(t, kafkaTLS), nil, "it may want TLS (Transport.TLS), or not be a Kafka broker"},
		{"TLS unwanted", listen(t, strictPlain), withTLS, "it may speak no TLS"},
		{"TLS unwanted, answers", listen(t, web), withTLS, "the listener speaks no TLS"},
		{"unknown authority", listen(t, kafkaTLS), &tls.Config{}, "set its RootCAs"},
		{"another name", listen(t, kafkaTLS), &tls.Config{RootCAs: trusted, ServerName: "other"}, "set Transport.TLS.ServerName"},
		{"expired", listen(t, kafkaTLS), &tls.Config{RootCAs: trusted, Time: func() time.Time { return time.Now().Add(48 * time.Hour) }}, "has it expired"},
		{"client certificate missing", listen(t, mutualTLS), withTLS, "it may want a client certificate"},
		{"SASL missing", listen(t, saslOnly), nil, "its listener may want SASL (Transport.SASL)"},
		{"web server", listen(t, impatientWeb), nil, "an HTTP server answers there"},
		{"mail server", listen(t, func(c net.Conn) { c.Write([]byte("220 mail.example ESMTP\r\n")); c.Read(make([]byte, 1)) }), nil, "is it a Kafka broker's port?"},
		{"nothing there", closed, nil, "nothing listens there"},
		{"no such host", "no-such-host.invalid:9092", nil, "the host name does not resolve"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := New(Config{Addr: kafka.TCP(tc.addr), Transport: &kafka.Transport{TLS: tc.tls}})
			defer client.Close()
			_, err := client.Metadata(t.Context(), nil)
			if tc.hint == "" {
				require.NoError(t, err)
				return
			}
			e := mustFail[*Error](t, err)
			require.Equal(t, tc.addr, e.Addr)
			require.Contains(t, err.Error(), tc.hint)
		})
	}
	require.ErrorContains(t, &Error{Addr: "a:1", Op: "connect to", Err: syscall.ECONNREFUSED}, "connect to a:1: connection refused")
}

// oneListener accepts one connection that is there already.
type oneListener struct{ c net.Conn }

func (l *oneListener) Accept() (net.Conn, error) {
	if l.c == nil {
		select {}
	}
	c := l.c
	l.c = nil
	return c, nil
}
func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return kafka.TCP("x") }

func TestCloseDoesNotWaitForTLSToSayGoodbye(t *testing.T) {
	cert, trusted := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		stuck := make(chan struct{})
		c.serve = func(_ string, p *peer) {
			// Without tickets: writing one, and the client's first request, would wait for each other in a pipe.
			p.Conn = tls.Server(p.Conn, &tls.Config{Certificates: []tls.Certificate{cert}, SessionTicketsDisabled: true})
			if !p.next() {
				t.Error("no handshake")
				return
			}
			p.answer(speaks(modern()))
			<-stuck // reads nothing more
		}
		client := newClient(t, &c, func(cfg *Config) {
			cfg.Transport.TLS = &tls.Config{RootCAs: trusted, ServerName: "localhost", Time: func() time.Time { return time.Time{} }}
			cfg.Transport.TLS.InsecureSkipVerify = true // the clock of the bubble stands in 2000
		})
		failed := make(chan error)
		go func() {
			_, err := client.Metadata(t.Context(), nil) // blocks in writing
			failed <- err
		}()
		synctest.Wait()
		start := time.Now()
		go client.Close()
		require.ErrorIs(t, <-failed, ErrClosed)
		require.Zero(t, time.Since(start))
		close(stuck)
		dialled, _ := c.count()
		require.Equal(t, 1, dialled, "no other broker is tried then")
	})
}

func TestLateDeadlineOfTheCallerNamesTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, s.Send(ctx, limits))
		_, err := s.Receive(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, "broker-1:9092", mustFail[*Error](t, err).Addr)
		close(f.answers)
	})
}

func TestBufferClasses(t *testing.T) {
	for n := 1; n <= maxFrame; n += 1 + n/7 {
		class := classOf(n)
		require.GreaterOrEqual(t, classSize(class), n)
		if class > 0 {
			require.Less(t, classSize(class-1), n)
			require.LessOrEqual(t, classSize(class), n+n/4+1)
		}
	}
	require.Equal(t, classes-1, classOf(maxFrame))
	require.True(t, strings.HasPrefix(greeting([]byte{0x15, 3, 1, 0}), "the listener speaks TLS"))
}
