package witness_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/witness"
)

// What is wrong with a witness of a test.
const (
	honest  = ""
	down    = "is down"          // it breaks connections off
	stalls  = "stalls"           // it takes what it is told, and never answers
	garbles = "answers nonsense" // in the place of cosignatures
	swaps   = "signs for others" // its cosignature is of another checkpoint
	other   = "is on another view"
)

// A served witness is a real one behind a network that may be bad.
type served struct {
	*witness.Witness
	url     string
	another string // the request that it answers in the place of others

	mu    sync.Mutex
	wrong string
}

func (s *served) set(wrong string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = wrong
}

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	wrong := s.wrong
	s.mu.Unlock()
	switch wrong {
	case down:
		panic(http.ErrAbortHandler)
	case stalls:
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not notice that the client goes
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case garbles:
		fmt.Fprintf(w, "— %s AAAA\n", strings.Repeat("x", 1000))
	case swaps:
		request := httptest.NewRequest(r.Method, r.URL.Path, strings.NewReader(s.another))
		s.Witness.ServeHTTP(w, request)
	default:
		s.Witness.ServeHTTP(w, r)
	}
}

// eventually waits until ok holds. A minute is far more than an idle machine needs.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// A log with five witnesses, of which three have to sign: two may be as bad as they like. A third one keeps new checkpoints
// back, and the last good one stays.
func TestFiveWitnesses(t *testing.T) {
	for _, bad := range [][2]string{{other, stalls}, {garbles, down}, {swaps, other}} {
		t.Run(bad[0]+", "+bad[1], func(t *testing.T) { fiveWitnesses(t, bad) })
	}
}

func fiveWitnesses(t *testing.T, bad [2]string) {
	shelf, keys := testkit.NewShelf(t), t.TempDir()
	options := signing.Options{Dir: keys, Origin: origin, Store: shelf.Store, Log: shelf.Log, Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	signer, err := signing.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	key := signer.Key()
	signer.Close()

	// With the log's stolen key another history was signed, of two entries.
	private, err := os.ReadFile(filepath.Join(keys, "log.key"))
	if err != nil {
		t.Fatal(err)
	}
	thief := &history{t: t, key: key}
	if thief.signer, err = note.NewSigner(strings.TrimSpace(string(private))); err != nil {
		t.Fatal(err)
	}
	thief.grow("not", "ours")

	var five []*served
	policy := ""
	names := ""
	for i := range 5 {
		w, err := witness.Open(witness.Options{Folder: t.TempDir(), Name: fmt.Sprintf("w%d.example", i), Logs: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		s := &served{Witness: w}
		if i >= 3 {
			s.wrong = bad[i-3]
		}
		s.another = thief.request(0)
		if s.wrong == other {
			if got := tell(w, thief.request(0)); got.Code != http.StatusOK {
				t.Fatalf("%d: %s", got.Code, got.Body)
			}
		}
		site := httptest.NewServer(s)
		t.Cleanup(func() { site.Close(); w.Close() })
		s.url = site.URL
		five = append(five, s)
		policy += fmt.Sprintf("witness w%d %s %s\n", i, w.Keys()[0], s.url)
		names += fmt.Sprintf(" w%d", i)
	}
	if options.Policy, err = signing.ParsePolicy([]byte(policy + "group enough 3" + names + "\nquorum enough\n")); err != nil {
		t.Fatal(err)
	}
	if signer, err = signing.Open(options); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); signer.Run(ctx) }()
	defer func() { cancel(); <-done; signer.Close() }()

	shown := func(want int64, by ...*served) bool {
		signed, err := signer.Checkpoint()
		if err != nil || signed.Size != want {
			return false
		}
		for _, w := range by {
			if n, err := note.Open(signed.Note, note.VerifierList(verifiers(t, w.Witness)...)); err != nil || len(n.Sigs) == 0 {
				return false
			}
		}
		return true
	}
	shelf.Register("vue", `{"name":"vue"}`)
	for i := range 4 {
		shelf.Publish("vue", fmt.Sprintf("1.0.%d", i), "a.js", map[string]string{"a.js": fmt.Sprint(i)})
		eventually(t, "the log is shown with three cosignatures", func() bool { return shown(shelf.Log.Checkpoint().Size, five[:3]...) })
	}

	// What was signed otherwise is told, and kept as a proof for anyone.
	if bad[0] == other || bad[1] == other {
		eventually(t, "the dispute is told", func() bool { return len(signer.Disputes()) > 0 })
		eventually(t, "a file proves the fork", func() bool {
			files, err := filepath.Glob(filepath.Join(keys, "dispute-*"))
			if err != nil || len(files) == 0 {
				return false
			}
			found, err := verify.VerifyEvidence(files[0], key)
			return err == nil && found.Outcome == verify.Forked
		})
	} else if got := signer.Disputes(); len(got) != 0 {
		t.Errorf("nothing was signed twice, and it says %q", got)
	}

	// A third one is away: what is published is not shown, and the last checkpoint that was stays.
	five[2].set(down)
	before := shelf.Log.Checkpoint().Size
	shelf.Publish("vue", "2.0.0", "a.js", map[string]string{"a.js": "2"})
	after := shelf.Log.Checkpoint().Size
	eventually(t, "the two that are left have signed", func() bool { return cosigned(five[0].Witness) == after && cosigned(five[1].Witness) == after })
	if !shown(before, five[:3]...) {
		signed, err := signer.Checkpoint()
		t.Errorf("with two cosignatures it shows %d entries, %v; want %d", signed.Size, err, before)
	}
	five[2].set(honest)
	eventually(t, "the log is shown again", func() bool { return shown(after, five[:3]...) })
}

// A followed log that does not continue what was cosigned is found out with the proof, whatever its sizes are.
func TestAFollowedLogForks(t *testing.T) {
	shelf, keys := testkit.NewShelf(t), t.TempDir()
	signer, err := signing.Open(signing.Options{Dir: keys, Origin: origin, Store: shelf.Store, Log: shelf.Log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer signer.Close()
	shelf.Register("vue", `{"name":"vue"}`)
	for i := range 3 {
		shelf.Publish("vue", fmt.Sprintf("1.0.%d", i), "a.js", map[string]string{"a.js": fmt.Sprint(i)})
	}
	if err := signer.Sign(); err != nil {
		t.Fatal(err)
	}
	served, err := tiles.New(tiles.Options{Store: shelf.Store, Signer: signer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	site := httptest.NewServer(tiles.Route(served, http.NotFoundHandler()))
	defer site.Close()

	private, err := os.ReadFile(filepath.Join(keys, "log.key"))
	if err != nil {
		t.Fatal(err)
	}
	thief := &history{t: t}
	if thief.signer, err = note.NewSigner(strings.TrimSpace(string(private))); err != nil {
		t.Fatal(err)
	}
	thief.grow("not", "ours")
	dir := t.TempDir()
	var said lockedBuffer
	w, err := witness.Open(witness.Options{Folder: dir, Name: "witness.example", Logs: []string{signer.Key(), site.URL}, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := tell(w, thief.request(0)); got.Code != http.StatusOK {
		t.Fatalf("%d: %s", got.Code, got.Body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, "the evidence is kept", func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "fork-*.json"))
		return err == nil && len(files) == 1
	})
	files, _ := filepath.Glob(filepath.Join(dir, "fork-*.json"))
	found, err := verify.VerifyEvidence(files[0], signer.Key())
	if err != nil || found.Outcome != verify.Forked || !strings.Contains(found.Why, "begins with other 2 entries") {
		t.Errorf("%+v, %v", found, err)
	}
	eventually(t, "it is told", func() bool { return strings.Contains(said.String(), "has forked") })
	if size := cosigned(w); size != 2 {
		t.Errorf("it has cosigned %d entries of the other history", size)
	}
}

// cosigned is how many entries of the log a witness has cosigned, as it says itself.
func cosigned(w *witness.Witness) (size int64) {
	shown := httptest.NewRecorder()
	w.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin))), nil))
	fmt.Sscanf(shown.Body.String(), origin+"\n%d\n", &size)
	return size
}

// A lockedBuffer may be written to and read at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
