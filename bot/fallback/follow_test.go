package fallback

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

// proven is what a verifier of the rig's log finds of a.js in a version of package a.
func (r *rig) proven(version string) (*verify.Release, verify.Result) {
	t, shelf := r.T, r.Shelf
	t.Helper()
	if r.shop == nil {
		r.keys = t.TempDir()
		r.shop = lardertest.Serve(t, shelf, r.keys)
	}
	s := r.shop
	for {
		key, err := verify.FetchKey(t.Context(), verify.Options{Server: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		log, err := verify.Open(t.Context(), verify.Options{Server: s.URL, Trust: verify.Trust{Key: key}})
		if err != nil || log.Size() < shelf.Log.Checkpoint().Size {
			continue // it is about to be signed
		}
		release, err := log.Release(t.Context(), "a", version)
		if err != nil {
			t.Fatal(err)
		}
		return release, log.VerifyURL(t.Context(), s.URL+"/ajax/libs/a/"+version+"/a.js", verify.Name{Package: "a", Version: version, Path: "a.js"})
	}
}

func TestLarderIsProvenByItsLog(t *testing.T) {
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a", "b.js": "b"})
	s.Shelf.Publish("a", "2.0.0", "a.js", map[string]string{"a.js": "two"})
	s.Lie("/content/"+kvstore.Sum([]byte("two")).String(), "owt")
	r := newRig(t, "larder:"+s.URL)
	if got, failure := r.ask("1.0.0", "a.js"); got != "a" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	v, err := views.LookupVersion(r.Store, "a", "1.0.0")
	if err != nil || v.Mirror == nil || v.Mirror.Proof != logs.ProofLog || v.Mirror.Entry != 0 || v.Mirror.Size < 1 || !strings.HasPrefix(v.Mirror.Key, "cdn.example.com/log+") {
		t.Fatalf("%+v, %v", v.Mirror, err)
	}
	if theirs, err := views.LookupVersion(s.Store, "a", "1.0.0"); err != nil || theirs.Manifest != v.Manifest {
		t.Errorf("another manifest: %v", err)
	}
	if got, failure := r.ask("2.0.0", "a.js"); got != "" || failure != mismatch {
		t.Errorf("a lie: %q, %+v", got, failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)

	// What is withdrawn there is withdrawn here.
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	for !slices.Contains(r.kinds(), logs.Withdrawn) { // the checkpoint has to be signed
		r.fallback.CheckMirrored(t.Context())
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn)
	v, err = views.LookupVersion(r.Store, "a", "1.0.0")
	if err != nil || v.Withdrawn == nil || !strings.Contains(v.Withdrawn.Reason, "malware") {
		t.Errorf("%+v, %v", v, err)
	}
}

// follows checks mirrored releases until the log has n entries; what the origin did has to be signed first.
func (r *rig) follows(n int) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); len(r.kinds()) < n; {
		if time.Now().After(deadline) {
			r.Fatalf("the log has %v, want %d entries", r.kinds(), n)
		}
		r.fallback.CheckMirrored(r.Context())
	}
}

// What the operator withdraws or erases here, the origin does not undo, even where it had withdrawn that first.
func TestOriginDoesNotUndoTheOperator(t *testing.T) {
	s := lardertest.New(t)
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		s.Shelf.Publish("a", version, "a.js", map[string]string{"a.js": version})
	}
	r := newRig(t, "larder:"+s.URL)
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		if got, failure := r.ask(version, "a.js"); got != version || failure != nil {
			t.Fatalf("got %q, %+v", got, failure)
		}
		r.waitIdle()
		s.Shelf.Withdraw("a", version, "a mistake")
	}
	r.follows(7)
	desk := bot.NewWithdrawalService(r.Store, r.Log, r.clock)
	if _, err := desk.Withdraw(t.Context(), "a", "1.0.0", "malware"); err != nil {
		t.Error(err)
	}
	if _, err := desk.Withdraw(t.Context(), "a", "1.0.0", "malware"); !errors.Is(err, bot.ErrAlreadyWithdrawn) {
		t.Errorf("withdrawn twice: %v", err)
	}
	if e, err := desk.Erase(t.Context(), "a", "2.0.0", "by order"); err != nil || e.Erased != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := desk.Withdraw(t.Context(), "a", "2.0.0", "malware"); err != nil { // as the origin's withdrawal was not the operator's
		t.Error(err)
	}
	for version, want := range map[string]bool{"1.0.0": false, "2.0.0": true} {
		if got, err := ingest.IsErased(r.Store, "a", version); err != nil || got != want {
			t.Errorf("%s was erased: %v, %v", version, got, err)
		}
	}
	r.Publish("c", "1.0.0", "c.js", map[string]string{"c.js": "2.0.0"}) // the same bytes are here again
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		s.Shelf.Restore("a", version, "it was none") // the last of them is restored here too
	}
	before := len(r.kinds())
	r.follows(before + 1)
	r.fallback.CheckMirrored(t.Context())
	if got := r.kinds()[before:]; !slices.Equal(got, []logs.Kind{logs.Restored}) {
		t.Errorf("after the origin restored all: %v", got)
	}
	for version, withdrawn := range map[string]bool{"1.0.0": true, "2.0.0": true, "3.0.0": false} {
		if v, err := views.LookupVersion(r.Store, "a", version); err != nil || (v.Withdrawn != nil) != withdrawn {
			t.Errorf("%s: %+v, %v", version, v.Withdrawn, err)
		}
	}
	r.wantKinds(r.kinds()...)
}

// withdrawnAtItsOrigin has a rig take a release from a Larder, which then withdraws it.
func withdrawnAtItsOrigin(t *testing.T) (*rig, *lardertest.Larder) {
	t.Helper()
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	r := newRig(t, "larder:"+s.URL)
	r.ask("1.0.0", "a.js")
	r.waitIdle()
	s.Shelf.Withdraw("a", "1.0.0", "a mistake")
	return r, s
}

// A withdrawal that the origin's log did not have at the last check is new, whatever the origin's clock says.
func TestOriginWithASlowClock(t *testing.T) {
	r, s := withdrawnAtItsOrigin(t)
	r.follows(3)
	r.pass(time.Hour) // the origin's clock stands
	if _, err := bot.NewWithdrawalService(r.Store, r.Log, r.clock).Restore(t.Context(), "a", "1.0.0", "we need it", nil); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	r.fallback.CheckMirrored(t.Context())
	r.open(r.fallback.o) // it starts again
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Restored)
	s.Shelf.Restore("a", "1.0.0", "it was none")
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	awaitSigned(t, s)
	r.open(r.fallback.o) // it did not run meanwhile
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Restored, logs.Withdrawn)
}

// awaitSigned returns once the origin's checkpoint has all that its log has.
func awaitSigned(t *testing.T, s *lardertest.Larder) {
	t.Helper()
	for signed := ""; signed != fmt.Sprint(s.Log.Checkpoint().Size); {
		checkpoint, err := http.Get(s.URL + "/log/checkpoint")
		if err != nil {
			t.Fatal(err)
		}
		note, err := io.ReadAll(checkpoint.Body)
		checkpoint.Body.Close()
		if lines := strings.Split(string(note), "\n"); err == nil && len(lines) > 1 {
			signed = lines[1]
		}
	}
}

// What the first check finds is applied once, and what comes after it is new at the next check.
func TestFirstLookAtAnOrigin(t *testing.T) {
	r, s := withdrawnAtItsOrigin(t)
	awaitSigned(t, s)
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn)
	s.Shelf.Restore("a", "1.0.0", "it was none")
	awaitSigned(t, s)
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Restored)
}
