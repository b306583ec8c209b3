package configstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// A faultyBucket fails operations that change it while fail returns an error for them.
type faultyBucket struct {
	bucket.Bucket
	fail func(operation, key string) error
}

var errFaulty = errors.New("the disk is full")

func (f *faultyBucket) check(operation, key string) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(operation, key)
}

func (f *faultyBucket) Create(ctx context.Context, key string, data []byte) (bucket.Version, error) {
	if err := f.check("create", key); err != nil {
		return "", err
	}
	return f.Bucket.Create(ctx, key, data)
}

func (f *faultyBucket) Put(ctx context.Context, key string, data []byte) error {
	if err := f.check("put", key); err != nil {
		return err
	}
	return f.Bucket.Put(ctx, key, data)
}

func (f *faultyBucket) Delete(ctx context.Context, key string) error {
	if err := f.check("delete", key); err != nil {
		return err
	}
	return f.Bucket.Delete(ctx, key)
}

// failAfter makes every change fail but the first n.
func failAfter(n int) func(string, string) error {
	return func(string, string) error {
		if n--; n < 0 {
			return errFaulty
		}
		return nil
	}
}

// faultyFolder returns a backend in a folder that can be made to fail.
func faultyFolder(t *testing.T, dir string) (*Backend, *faultyBucket) {
	t.Helper()
	b, err := bucket.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &faultyBucket{Bucket: b}
	return NewBackend(f, "versions/", Checksum{}), f
}

func numbers(t *testing.T, b *Backend) (all []int64) {
	t.Helper()
	stored, err := b.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range stored {
		all = append(all, at.number)
	}
	return all
}

func refresh(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// An upload of the record that fails at any version leaves the newest version in force: on the node that founds the cluster, after
// its restart, and on others. The next attempt completes it.
func TestPartialUpload(t *testing.T) {
	for uploaded := range 6 {
		t.Run(fmt.Sprint(uploaded), func(t *testing.T) {
			dir := t.TempDir()
			local := openFolder(t, filepath.Join(dir, "local"))
			alone, _ := openStore(t, local, local)
			for i := range int64(5) {
				propose(t, alone, i, fmt.Sprint(i+1))
			}
			shared, faults := faultyFolder(t, filepath.Join(dir, "shared"))
			faults.fail = failAfter(uploaded)
			leader, _ := openStore(t, shared, local)
			if err := leader.Share(t.Context()); uploaded < 5 && !errors.Is(err, errFaulty) || uploaded == 5 && err != nil {
				t.Fatal(err)
			}
			inForce(t, leader, 5, "5")
			leader, _ = openStore(t, shared, local)
			inForce(t, leader, 5, "5")
			follower, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "follower")))
			if uploaded > 0 {
				inForce(t, follower, 5, "5")
			} else {
				inForce(t, follower, 0, "")
			}
			faults.fail = nil
			if err := leader.Share(t.Context()); err != nil || leader.State().Problem != nil {
				t.Error(err, leader.State().Problem)
			}
			refresh(t, follower)
			for _, s := range []*Store{leader, follower} {
				inForce(t, s, 5, "5")
				if got := len(s.History()); got != 5 {
					t.Errorf("%d versions are known", got)
				}
			}
			if got := numbers(t, shared); !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
				t.Errorf("the bucket has the versions %v", got)
			}
		})
	}
}

// What Share cannot finish, following does.
func TestUploadIsRepeated(t *testing.T) {
	dir := t.TempDir()
	local := openFolder(t, filepath.Join(dir, "local"))
	alone, _ := openStore(t, local, local)
	propose(t, alone, 0, "a")
	propose(t, alone, 1, "b")
	shared, faults := faultyFolder(t, filepath.Join(dir, "shared"))
	faults.fail = failAfter(1)
	leader, _ := openStore(t, shared, local)
	if err := leader.Share(t.Context()); !errors.Is(err, errFaulty) {
		t.Error(err)
	}
	faults.fail = nil
	leader.followOnce(t.Context())
	if got := numbers(t, shared); !slices.Equal(got, []int64{1, 2}) || leader.State().Problem != nil {
		t.Errorf("the bucket has the versions %v, and the problem is %v", got, leader.State().Problem)
	}
}

// A bucket that has lost its last versions takes none of them back, neither while nodes run nor when they start. The node that
// publishes uploads them again; another one only reports it.
func TestAuthorityLosesVersions(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	leaderCopy, followerCopy := openFolder(t, filepath.Join(dir, "leader")), openFolder(t, filepath.Join(dir, "follower"))
	leader, _ := openStore(t, shared, leaderCopy)
	for i, content := range []string{"a", "b", "c", "d"} {
		propose(t, leader, int64(i), content)
	}
	follower, _ := openStore(t, shared, followerCopy)
	for _, lost := range [][]int64{{4}, {3, 4}, {1, 2, 3, 4}} {
		for _, number := range lost {
			if err := shared.delete(t.Context(), number); err != nil {
				t.Fatal(err)
			}
		}
		refresh(t, follower)
		again, _ := openStore(t, shared, followerCopy)
		for _, s := range []*Store{follower, again} {
			inForce(t, s, 4, "d")
			if err := s.State().Problem; err == nil || !strings.Contains(err.Error(), "version 4 is in force here") {
				t.Errorf("the loss is not reported: %v", err)
			}
		}
		if !again.State().Confirmed.IsZero() {
			t.Error("a version is confirmed that the bucket does not have")
		}
		leader, _ = openStore(t, shared, leaderCopy)
		inForce(t, leader, 4, "d")
		if err := leader.Share(t.Context()); err != nil || leader.State().Problem != nil {
			t.Error(err, leader.State().Problem)
		}
		refresh(t, follower)
		if got := numbers(t, shared); !slices.Equal(got, []int64{1, 2, 3, 4}) || follower.State().Problem != nil {
			t.Errorf("the bucket has the versions %v, and the problem is %v", got, follower.State().Problem)
		}
	}
	// If the record goes on without them, that counts.
	for _, number := range []int64{3, 4} {
		if err := shared.delete(t.Context(), number); err != nil {
			t.Fatal(err)
		}
	}
	other, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "other")))
	propose(t, other, 2, "x")
	refresh(t, follower)
	inForce(t, follower, 3, "x")
	again, _ := openStore(t, shared, followerCopy)
	inForce(t, again, 3, "x")
	if got := len(again.History()); got != 3 {
		t.Errorf("%d versions are known", got)
	}
}

// A node with another record follows that of the cluster, wherever copying it fails, and whether or not it starts again then. What
// cannot be copied is copied later.
func TestJoinWithFailingCopy(t *testing.T) {
	for works := range 12 {
		t.Run(fmt.Sprint(works), func(t *testing.T) {
			dir := t.TempDir()
			shared := openFolder(t, filepath.Join(dir, "shared"))
			leader, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "leader")))
			for i, content := range []string{"a", "b", "c"} {
				propose(t, leader, int64(i), content)
			}
			local, faults := faultyFolder(t, filepath.Join(dir, "joiner"))
			other, _ := openStore(t, local, local)
			for i := range int64(5) {
				propose(t, other, i, "other")
			}
			faults.fail = failAfter(works)
			joiner, _ := openStore(t, shared, local)
			again, _ := openStore(t, shared, local) // after a crash
			for _, s := range []*Store{joiner, again} {
				inForce(t, s, 3, "c")
				if len(numbers(t, local)) != 3 && s.State().Problem == nil {
					t.Error("it is not reported that the record is not copied")
				}
				if err := s.Share(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if v, err := again.Read(t.Context(), 2); err != nil || string(v.Content) != "b" {
				t.Errorf("version 2: %s %v", v.Content, err)
			}
			faults.fail = nil
			again.followOnce(t.Context())
			refresh(t, again)
			if got := numbers(t, shared); !slices.Equal(got, []int64{1, 2, 3}) {
				t.Errorf("the bucket has the versions %v", got)
			}
			left, _ := openStore(t, local, local)
			inForce(t, left, 3, "c")
			for i, want := range []string{"a", "b"} {
				if v, err := left.Read(t.Context(), int64(i+1)); err != nil || string(v.Content) != want {
					t.Errorf("version %d in the copy: %s %v", i+1, v.Content, err)
				}
			}
			if again.State().Problem != nil {
				t.Error(again.State().Problem)
			}
		})
	}
}

// A bucket that gets another record while a node runs, with versions of the same numbers, is followed.
func TestRecordIsReplaced(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	leader, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "leader")))
	propose(t, leader, 0, "a")
	propose(t, leader, 1, "b")
	follower, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "follower")))
	if err := os.RemoveAll(filepath.Join(dir, "shared", "versions")); err != nil {
		t.Fatal(err)
	}
	second, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "second")))
	propose(t, second, 0, "x")
	propose(t, second, 1, "y")
	refresh(t, follower)
	inForce(t, follower, 2, "y")
	if v, err := follower.Read(t.Context(), 1); err != nil || string(v.Content) != "x" {
		t.Errorf("version 1: %s %v", v.Content, err)
	}
}

// A version that a subscriber cannot apply is stored, the error is returned, and it is applied as soon as that is possible.
func TestApplyIsRepeated(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	now := time.Now()
	open := func(name string) *Store {
		s, err := Open(t.Context(), Options{
			Authority: shared, Copy: openFolder(t, filepath.Join(dir, name)), Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	leader, follower := open("leader"), open("follower")
	fails := true
	applied := map[*Store]int64{}
	for _, s := range []*Store{leader, follower} {
		s.Subscribe(func(v Version) error {
			if fails {
				return errFaulty
			}
			applied[s] = v.Number
			return nil
		})
	}
	v, err := leader.Propose(t.Context(), 0, Change{Content: []byte("a")})
	if not := (*ApplyError)(nil); !errors.As(err, &not) || not.Number != 1 || !errors.Is(err, errFaulty) || v.Number != 1 {
		t.Errorf("version %d, %v", v.Number, err)
	}
	refresh(t, follower)
	fails = false
	for _, s := range []*Store{leader, follower} {
		inForce(t, s, 1, "a")
		s.followOnce(t.Context())
		if applied[s] != 0 {
			t.Error("a version is applied again at once")
		}
	}
	now = now.Add(firstApplyBackoff)
	for _, s := range []*Store{leader, follower} {
		s.followOnce(t.Context())
		if applied[s] != 1 {
			t.Errorf("version %d is applied, not 1", applied[s])
		}
	}
}

// A client that goes away when the version is stored does not keep it from being copied and applied.
func TestClientGoesAway(t *testing.T) {
	dir := t.TempDir()
	shared, faults := faultyFolder(t, filepath.Join(dir, "shared"))
	copied := openFolder(t, filepath.Join(dir, "leader"))
	leader, _ := openStore(t, shared, copied)
	ctx, cancel := context.WithCancel(t.Context())
	applied := int64(0)
	leader.Subscribe(func(v Version) error { applied = v.Number; return nil })
	faults.fail = func(string, string) error { return nil }
	gone := &goneAfterCreate{faults, cancel}
	leader.options.Authority = NewBackend(gone, "versions/", Checksum{})
	if v, err := leader.Propose(ctx, 0, Change{Content: []byte("a")}); err != nil || v.Number != 1 || applied != 1 {
		t.Errorf("version %d is applied, %v", applied, err)
	}
	if got := numbers(t, copied); !slices.Equal(got, []int64{1}) {
		t.Errorf("the copy has the versions %v", got)
	}
}

type goneAfterCreate struct {
	bucket.Bucket
	cancel context.CancelFunc
}

func (g *goneAfterCreate) Create(ctx context.Context, key string, data []byte) (bucket.Version, error) {
	v, err := g.Bucket.Create(ctx, key, data)
	g.cancel()
	return v, err
}

// A node that started without the bucket, and is so far behind that its next version is pruned, is not confirmed, and catches up.
// Neither is one whose bucket has lost versions, or has damaged ones.
func TestFollowConfirmsOnlyTheNewest(t *testing.T) {
	dir := t.TempDir()
	b, err := bucket.OpenFolder(filepath.Join(dir, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	link := &cutOff{Bucket: b}
	shared, copied := NewBackend(b, "versions/", Checksum{}), openFolder(t, filepath.Join(dir, "follower"))
	leader, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "leader")))
	propose(t, leader, 0, "x")
	openStore(t, shared, copied)
	for i := range int64(maxVersions + 5) {
		propose(t, leader, i+1, "x")
	}
	link.off = true
	follower, _ := openStore(t, NewBackend(link, "versions/", Checksum{}), copied)
	follower.followOnce(t.Context())
	if state := follower.State(); state.Problem == nil || !state.Confirmed.IsZero() || state.Version.Number != 1 {
		t.Errorf("a node that is behind: %+v", state)
	}
	link.off = false
	follower.followOnce(t.Context())
	if state := follower.State(); state.Problem != nil || state.Confirmed.IsZero() || state.Version.Number != maxVersions+6 {
		t.Errorf("a node that has caught up: %+v", state)
	}
	last := filepath.Join(dir, "shared", "versions", fmt.Sprintf("%020d", maxVersions+7))
	if err := os.WriteFile(last, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		follower.followOnce(t.Context())
		if err := follower.State().Problem; !isCorrupt(err) {
			t.Errorf("the damage is not reported: %v", err)
		}
	}
}

// An object with a number that changes cannot reach, and damaged objects in any number, neither use up the numbers nor have sound
// versions removed.
func TestHostileNumbers(t *testing.T) {
	dir := t.TempDir()
	local := openFolder(t, dir)
	s, _ := openStore(t, local, local)
	garbage := func(number int64) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "versions", fmt.Sprintf("%020d", number)), []byte("no version"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	propose(t, s, 0, "a")
	propose(t, s, 1, "b")
	garbage(maxNumber - 1)
	propose(t, s, 2, "c")
	inForce(t, s, 3, "c")
	for i := range int64(maxVersions + 5) {
		garbage(4 + i)
	}
	s, _ = openStore(t, local, local)
	v := propose(t, s, 3, "d")
	if want := int64(maxVersions + 9); v.Number != want {
		t.Errorf("version %d, want %d", v.Number, want)
	}
	s, _ = openStore(t, local, local)
	inForce(t, s, v.Number, "d")
	if _, err := s.Undo(t.Context(), v.Number, 3, "undo", accept); err != nil {
		t.Error(err)
	}
	s.listed = maxNumber - 1
	current, _ := s.Get()
	if _, err := s.propose(t.Context(), current.Number, Change{}); err == nil || !strings.Contains(err.Error(), "no number is left") {
		t.Errorf("%v", err)
	}
}

// An undo whose version is refused changes nothing.
func TestUndoIsChecked(t *testing.T) {
	local := openFolder(t, t.TempDir())
	s, _ := openStore(t, local, local)
	propose(t, s, 0, "a")
	propose(t, s, 1, "b")
	refuse := func(v Version) error { return fmt.Errorf("%s is refused", v.Content) }
	if _, err := s.Undo(t.Context(), 2, 0, "undo", refuse); err == nil || err.Error() != "a is refused" {
		t.Error(err)
	}
	inForce(t, s, 2, "b")
}
