package signing_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// A lie is what a hostile witness answers, of a log of size entries.
type lie struct {
	name   string
	status int
	kind   string
	answer func(w *testkit.Witness, rw http.ResponseWriter, size int64)
	says   string // to the operator
}

func text(answer string) func(*testkit.Witness, http.ResponseWriter, int64) {
	return func(_ *testkit.Witness, rw http.ResponseWriter, _ int64) { io.WriteString(rw, answer) }
}

var lies = []lie{
	{"of something else", 200, "", func(w *testkit.Witness, rw http.ResponseWriter, size int64) {
		io.WriteString(rw, w.Cosign(fmt.Sprintf("log.example\n%d\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", size), 1))
	}, "not a cosignature"},
	{"nothing", 200, "", text(""), "not a cosignature"},
	{"of another witness", 200, "", text("— other.example AAAAAAAAAAAA\n"), "not a cosignature"},
	{"many of another witness", 200, "", text(strings.Repeat("— other.example AAAAAAAAAAAA\n", 500)), "not a cosignature"},
	{"garbage", 200, "", text("\x00\xff\n\n"), "not a cosignature"},
	{"a lot", 200, "", text(strings.Repeat("x", 100<<10)), "over 65536 bytes"},
	{"without an end", 200, "", func(_ *testkit.Witness, rw http.ResponseWriter, _ int64) {
		for {
			if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}, "over 65536 bytes"},
	{"never", 200, "", func(_ *testkit.Witness, rw http.ResponseWriter, _ int64) {
		rw.(http.Flusher).Flush()
		if conn, _, err := http.NewResponseController(rw).Hijack(); err == nil {
			io.Copy(io.Discard, conn) // until the client gives up
			conn.Close()
		}
	}, context.DeadlineExceeded.Error()},
	{"elsewhere", 302, "", text(""), "302 Found"},
	{"not at home", 404, "", text("no\nsuch log"), `404 Not Found: \"no\\nsuch log\"`},
	{"the size of the request", 409, "Text/X.tlog.size; a=b", text("0\n"), "it reports the size 0, which is the one that the request named"},
	{"no continuation", 422, "", text(""), "it says that this log does not continue the one that it has cosigned"},
	{"no size", 409, "text/x.tlog.size", text("-1\n"), "entries"},
	{"no size at all", 409, "text/x.tlog.size", text(""), "entries"},
	{"a conflict", 409, "text/plain", text("1"), "409 Conflict"},
	{"of more", 409, "text/x.tlog.size", text("1000000\n"), "it says that it has cosigned 1000000 entries, and the last signed checkpoint is of "},
	{"of as much", 409, "text/x.tlog.size", func(_ *testkit.Witness, rw http.ResponseWriter, size int64) { fmt.Fprintln(rw, size) }, "it says that it has cosigned another log of "},
}

func (l lie) told(w *testkit.Witness, log *logs.Log) {
	w.Instead(func(rw http.ResponseWriter) bool {
		if l.kind != "" {
			rw.Header().Set("Content-Type", l.kind)
		}
		if l.status == 302 {
			rw.Header().Set("Location", w.URL())
		}
		rw.WriteHeader(l.status)
		l.answer(w, rw, log.Checkpoint().Size)
		return true
	})
}

// An impatient transport has its requests to one address time out soon while hurries is set. All others have a minute, because
// a machine may be slow.
type impatient struct {
	to      string
	hurries atomic.Bool
}

func (p *impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.hurries.Load() && strings.HasPrefix(r.URL.String(), p.to) {
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		context.AfterFunc(ctx, cancel)
		r = r.WithContext(ctx)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// client is as the one that Options have without one, but for the time.
func (p *impatient) client() *http.Client {
	return &http.Client{Transport: p, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// TestWitnessesThatLie add nothing to what is shown. They keep nothing from being signed and
// shown that the policy can do without. Where it cannot, what was shown stays, the operator is
// told, and all goes on without a restart once the witness says the truth.
func TestWitnessesThatLie(t *testing.T) {
	for name, tt := range map[string]struct {
		quorum     string
		needed     bool
		signatures int // of what is shown without the liar's; the log has a signature and a cosignature
	}{
		"none":   {"quorum none\n", false, 2},
		"2 of 3": {"group g 2 w0 w1 w2\nquorum g\n", false, 4},
		"all":    {"group g all w0 w1 w2\nquorum g\n", true, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r, key := witnessed(t)
			liar, honest, also := newWitness(t, "liar.example", key), newWitness(t, "honest.example", key), newWitness(t, "also.example", key)
			lines := witnessLines(liar, honest, also)
			if tt.signatures == 2 {
				lines = witnessLines(liar)
			}
			var said lockedBuffer
			r.next.Logger = slog.New(slog.NewTextHandler(&said, nil))
			transport := &impatient{to: liar.URL()}
			r.next.Client = transport.client()
			r.next.Policy = parsed(t, lines+tt.quorum)
			r.grow(2, "vue")
			s := r.open()
			stop := r.run(s)
			for _, l := range lies {
				eventually(t, "all sign", func() bool { return r.cosigned(s, liar)[0] && s.Problem() == nil })
				before, _ := s.Checkpoint()
				said.Reset()
				transport.hurries.Store(l.name == "never")
				l.told(liar, r.log)
				r.grow(1, "vue")
				eventually(t, l.name+": the operator is told "+l.says, func() bool { return strings.Contains(said.String(), l.says) })
				if tt.needed {
					says := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(l.says)
					eventually(t, l.name+": the problem is "+says, func() bool { // a lie may be told in between of a tree that the witness knows already
						err := s.Problem()
						return err != nil && strings.Contains(err.Error(), "missing: liar.example (") && strings.Contains(err.Error(), says)
					})
					if now, err := s.Checkpoint(); err != nil || !bytes.Equal(now.Note, before.Note) {
						t.Errorf("%s: shown is %s, %v; want %s", l.name, now.Note, err, before.Note)
					}
				} else {
					eventually(t, l.name+": what is signed is shown", func() bool {
						signed, err := s.Checkpoint()
						return err == nil && signed.Checkpoint == r.log.Checkpoint() && bytes.Count(signed.Note, []byte("\n— ")) == tt.signatures
					})
					if err := s.Problem(); err != nil {
						t.Errorf("%s: there is a problem: %v", l.name, err)
					}
				}
				liar.Instead(nil)
				transport.hurries.Store(false)
			}
			eventually(t, "all sign", func() bool { return r.cosigned(s, liar)[0] })
			stop()
			if len(s.Disputes()) > 0 {
				t.Errorf("lies dispute the log: %s", s.Disputes())
			}
			r.close(s)
		})
	}
}

// TestALieAtTheStart takes nothing away either, and ends nothing.
func TestALieAtTheStart(t *testing.T) {
	r, key := witnessed(t)
	r.grow(2, "vue")
	s := r.open()
	r.sign(s)
	r.close(s)
	liar := newWitness(t, "liar.example", key)
	lies[len(lies)-2].told(liar, r.log)
	r.next.Policy = signing.Majority(configured(t, liar))
	s = r.open()
	r.grow(1, "vue")
	stop := r.run(s)
	eventually(t, "it is told", func() bool {
		err := s.Problem()
		return err != nil && strings.Contains(err.Error(), "1000000 entries")
	})
	r.signedAre(s, 2)
	liar.Instead(nil)
	eventually(t, "it goes on", func() bool { return r.cosigned(s, liar)[0] && s.Problem() == nil })
	stop()
	r.close(s)
}
