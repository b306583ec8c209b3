package lane_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server/lane"
)

// A connection with HTTP/2 is closed when it is silent, idle, or was told of an end to come and has
// no streams left; not before.
func TestSilenceOverHTTP2(t *testing.T) {
	goAway := func(t *testing.T, s *speaker, last uint32) {
		t.Helper()
		if f, ok := s.hears(http2.FrameGoAway).(*http2.GoAwayFrame); !ok || f.LastStreamID != last || f.ErrCode != 0 {
			t.Errorf("it ends with %v, want GOAWAY of %d", f, last)
		}
	}
	end := func(t *testing.T, s *speaker, since time.Time, after time.Duration) {
		t.Helper()
		if f := s.hears(0xff); f != nil || time.Since(since) != after {
			t.Errorf("the end comes after %v, want %v", time.Since(since), after)
		}
	}
	held := make(chan struct{})
	for name, test := range map[string]func(t *testing.T, l *lane.Listener, c net.Conn){
		"before the preface ends": func(t *testing.T, l *lane.Listener, c net.Conn) {
			since := time.Now()
			io.WriteString(c, http2.ClientPreface[:10])
			s := &speaker{Framer: http2.NewFramer(c, c), Conn: c}
			goAway(t, s, 0)
			end(t, s, since, 10*time.Second)
		},
		"in a frame": func(t *testing.T, l *lane.Listener, c net.Conn) {
			since := time.Now()
			s := speakOnPipe(t, c)
			s.Write([]byte{0, 0})
			if f, ok := s.hears(http2.FrameGoAway).(*http2.GoAwayFrame); !ok || f.ErrCode != http2.ErrCodeProtocol {
				t.Errorf("it ends with %v", f)
			}
			end(t, s, since, 11*time.Second) // with time to read why
		},
		"after a request": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			for id := uint32(1); id < 6; id += 2 {
				time.Sleep(time.Minute)
				s.ask(id, "/a")
				s.hears(http2.FrameData)
			}
			since := time.Now()
			time.Sleep(time.Minute)
			s.WritePing(false, [8]byte{})
			goAway(t, s, 5)
			end(t, s, since, 2*time.Minute)
		},
		"closed as idle": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			s.ask(1, "/a")
			s.hears(http2.FrameData)
			synctest.Wait()
			if !l.CloseIdle(time.Now().Add(time.Second)) {
				t.Error("it is not idle")
			}
			goAway(t, s, 1)
			end(t, s, time.Now(), 0)
		},
		"stopped": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			s.ask(1, "/else")
			synctest.Wait()
			if open, working := l.Counts(); open != 1 || working != 1 {
				t.Errorf("%d connections, %d working", open, working)
			}
			if l.CloseIdle(time.Now().Add(time.Second)) {
				t.Error("it is idle with a request")
			}
			since := time.Now()
			l.Stop()
			goAway(t, s, 1<<31-1)
			if time.Since(since) != 0 {
				t.Errorf("the first step comes after %v", time.Since(since))
			}
			s.hears(http2.FramePing)
			goAway(t, s, 1) // although the client answers no PING: it has had time to make requests
			if time.Since(since) != 10*time.Second {
				t.Errorf("the last step comes after %v", time.Since(since))
			}
			time.Sleep(time.Hour)
			held <- struct{}{}
			if f := s.hears(http2.FrameHeaders); f == nil || !f.Header().Flags.Has(http2.FlagHeadersEndStream) {
				t.Errorf("the answer is %v", f)
			}
			end(t, s, time.Now(), 0)
		},
		"stopped before the first request": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			l.Stop()
			time.Sleep(9 * time.Second)
			since := time.Now()
			s.ask(1, "/a")
			goAway(t, s, 1<<31-1)
			ping := s.hears(http2.FramePing).(*http2.PingFrame).Data
			if s.hears(http2.FrameData) == nil {
				t.Error("it is not answered")
			}
			s.WritePing(true, ping)
			goAway(t, s, 1)
			end(t, s, since, 0)
		},
		"stopped, and no request comes": func(t *testing.T, l *lane.Listener, c net.Conn) {
			since := time.Now()
			s := speakOnPipe(t, c)
			time.Sleep(time.Second)
			l.Stop()
			goAway(t, s, 1<<31-1)
			if time.Since(since) != 10*time.Second {
				t.Errorf("the first step comes after %v", time.Since(since))
			}
			s.ask(1, "/a") // on its way when that came
			if s.hears(http2.FrameData) == nil {
				t.Error("it is not answered")
			}
			goAway(t, s, 1)
			end(t, s, since, 11*time.Second)
		},
		"stopped within a later request": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			s.ask(1, "/a")
			s.hears(http2.FrameData)
			whole := s.request(3, "/a")
			s.Write(whole[:10])
			synctest.Wait()
			l.Stop()
			goAway(t, s, 1<<31-1)
			time.Sleep(3 * time.Second)
			s.Write(whole[10:])
			if s.hears(http2.FrameData) == nil {
				t.Error("it is not answered")
			}
			goAway(t, s, 3)
			end(t, s, time.Now(), 0)
		},
		"stopped, and the client knows": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			s.ask(1, "/a")
			s.hears(http2.FrameData)
			since := time.Now()
			l.Stop()
			goAway(t, s, 1<<31-1)
			s.ask(3, "/a")
			s.WritePing(true, s.hears(http2.FramePing).(*http2.PingFrame).Data)
			goAway(t, s, 3)
			end(t, s, since, 0)
		},
		"aborted": func(t *testing.T, l *lane.Listener, c net.Conn) {
			s := speakOnPipe(t, c)
			s.ask(1, "/else")
			synctest.Wait()
			l.Abort()
			end(t, s, time.Now(), 0)
			held <- struct{}{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				held = make(chan struct{})
				inner := make(pipes)
				l := lane.New(inner, multiplexing(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					http.NewResponseController(w).SetWriteDeadline(time.Time{})
					<-held
					w.WriteHeader(204)
				})))
				ours, theirs := net.Pipe()
				inner <- theirs
				test(t, l, ours)
				ours.Close()
				l.Abort()
				close(inner)
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
			})
		})
	}
}

// speakOnPipe returns when the server has said that it knows the client's settings. What is written
// then does not wait until it is read.
func speakOnPipe(t *testing.T, c net.Conn) *speaker {
	q := &queued{Conn: c, wake: make(chan []byte, 100)}
	t.Cleanup(func() { close(q.wake) })
	go func() {
		for b := range q.wake {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	s := speak(q)
	for f := s.hears(http2.FrameSettings); f != nil && !f.(*http2.SettingsFrame).IsAck(); f = s.hears(http2.FrameSettings) {
	}
	return s
}

type queued struct {
	net.Conn
	wake chan []byte
}

func (q *queued) Write(p []byte) (int, error) {
	q.wake <- bytes.Clone(p)
	return len(p), nil
}
