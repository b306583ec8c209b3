package cluster

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A writer of a test, which signs and shows.
type showman struct {
	*member
	*signing.Signer
	ahead time.Duration // of the clock by which the log is cosigned
}

func perform(t *testing.T, m *member, keys string) *showman {
	t.Helper()
	s := &showman{member: m}
	var err error
	s.Signer, err = signing.Open(signing.Options{Dir: keys, Origin: origin, Store: m.Shelf.Store, Log: m.Shelf.Log, Now: func() time.Time { return time.Now().Add(s.ahead) }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *showman) show(t *testing.T) signing.Signed {
	t.Helper()
	if err := s.Sign(); err != nil {
		t.Fatal(err)
	}
	signed, err := s.Signer.Checkpoint()
	if err == nil {
		err = s.UpdatePublic(t.Context(), signed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func showing(n *Node, key string) (s *PublishedView, kept *signing.Signed, proofs *int) {
	kept, proofs = new(signing.Signed), new(int)
	return NewPublishedView(n, key, signing.Signed{}, func(_ string, s signing.Signed) error {
		*kept = s
		return nil
	}, func(*signing.Evidence) string {
		*proofs++
		return "fork.json"
	}), kept, proofs
}

func TestPublishedView(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	writer := perform(t, one, t.TempDir())
	s, kept, proofs := showing(two.Node, "")
	if err := s.Refresh(ctx); err != nil || s.Key() != "" {
		t.Errorf("without a checkpoint: %q, %v", s.Key(), err)
	}
	if err := one.publish("a", "1.0.0"); err != nil {
		t.Fatal(err)
	}
	first := writer.show(t)
	if err := s.Refresh(ctx); err != nil || s.Served().Note != nil {
		t.Errorf("shown before the entries are here: %v, %v", s.Served().Checkpoint, err)
	}
	if lacks, _ := s.MissingEntries(); lacks != 1 {
		t.Errorf("it lacks %d entries", lacks)
	}
	two.catchUp(t)
	if err := s.Refresh(ctx); err != nil || string(s.Served().Note) != string(first.Note) || s.Key() != writer.Key() || string(kept.Note) != string(first.Note) {
		t.Errorf("shown: %q, %v", s.Served().Note, err)
	}
	if err := one.publish("a", "1.0.1"); err != nil {
		t.Fatal(err)
	}
	second := writer.show(t)
	two.catchUp(t)
	if err := s.Refresh(ctx); err != nil || s.SignedInStore() != second.Checkpoint {
		t.Errorf("shown: %v, %v", s.SignedInStore(), err)
	}
	if !s.UpToDate(time.Now()) || s.UpToDate(time.Now().Add(time.Hour)) {
		t.Error("the checkpoint of an unchanged log is to be read again after a while")
	}
	// The log's cosignature is renewed.
	writer.ahead = time.Hour
	renewed := writer.show(t)
	if err := s.Refresh(ctx); err != nil || string(renewed.Note) == string(second.Note) || string(s.Served().Note) != string(renewed.Note) || string(kept.Note) != string(renewed.Note) {
		t.Errorf("shown: %s, %v", s.Served().Note, err)
	}
	// A late put of an older one is not gone back to.
	if err := b.Put(ctx, publicPrefix+checkpointPath, first.Note); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(ctx); err != nil || s.SignedInStore() != second.Checkpoint {
		t.Errorf("after a late put: %v, %v", s.SignedInStore(), err)
	}
	// The same key signs another log.
	fork := join(t, folder(t), "fork")
	fork.lead(t)
	for _, version := range []string{"6.6.5", "6.6.6"} {
		if err := fork.publish("a", version); err != nil {
			t.Fatal(err)
		}
	}
	forged := perform(t, fork, copiedKeys(t, writer.Folder())).show(t)
	if err := b.Put(ctx, publicPrefix+checkpointPath, forged.Note); err != nil {
		t.Fatal(err)
	}
	var forked *ForkError
	if err := s.Refresh(ctx); !errors.As(err, &forked) || forked.Evidence == "" || *proofs != 1 || s.SignedInStore() != second.Checkpoint {
		t.Errorf("after a fork: %v, %d proofs, %v", s.SignedInStore(), *proofs, err)
	}
	if _, evidence := s.MissingEntries(); evidence == "" {
		t.Error("the evidence is not told")
	}
	// A checkpoint of nobody.
	if err := b.Put(ctx, publicPrefix+checkpointPath, []byte("nobody\n1\nAAAA\n\n— nobody AAAAAA==\n")); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(ctx); err == nil || s.SignedInStore() != second.Checkpoint {
		t.Errorf("after a checkpoint of nobody: %v, %v", s.SignedInStore(), err)
	}
}

func TestMembers(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	now := time.Now().UTC().Truncate(time.Second)
	for _, m := range []Member{{Name: "b", Role: Follower, Heard: now}, {Name: "a", Role: Candidate, Heard: now}, {Name: "c", Role: Leader, Heard: now}, {Name: "old", Role: Leader, Heard: now.Add(-25 * time.Hour)}} {
		if err := one.PutMember(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	all, err := two.Members(t.Context())
	if err != nil || len(all) != 3 || all[0].Name != "c" || all[1].Name != "a" || all[2].Name != "b" || all[0].Root == "" {
		t.Errorf("%+v, %v", all, err)
	}
}

// Of two that say that they write, the one that the bucket knows is the leader; and none is that was silent for long.
func TestFormerWriters(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	tell := func(m *member, heard time.Time) {
		t.Helper()
		if err := m.PutMember(t.Context(), Member{Name: m.URL, Role: Leader, Heard: heard}); err != nil {
			t.Fatal(err)
		}
	}
	roles := func(want string) {
		t.Helper()
		all, err := two.Members(t.Context())
		got := ""
		for _, m := range all {
			got += m.Name + " " + m.Role + "; "
		}
		if err != nil || got != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	one.lead(t)
	tell(one, time.Now())
	roles("https://one leader; ")
	two.lead(t) // as after a kill: the first one's last word stays
	roles("https://one former leader; ")
	tell(two, time.Now())
	roles("https://two leader; https://one former leader; ")
	tell(two, time.Now().Add(-2*time.Minute)) // and no node takes its place
	roles("https://one former leader; https://two former leader; ")
}

var _ tiles.Signer = (*PublishedView)(nil)

// copiedKeys returns a key folder with the key of another one, and nothing signed but an empty log.
func copiedKeys(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	empty := testkit.NewShelf(t)
	key, err := os.ReadFile(filepath.Join(from, "log.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(to, "next.key"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := signing.Open(signing.Options{Dir: to, Store: empty.Store, Log: empty.Log, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}
