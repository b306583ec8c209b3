package cluster

import (
	"bytes"
	"errors"
	"testing"
)

func clusterKey(t *testing.T, dir string) *Key {
	t.Helper()
	key, err := OpenKey(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// What the writer has saved is what the one after it gets, and what a replaced one saves late is not.
func TestSideState(t *testing.T) {
	ctx, b, dir := t.Context(), folder(t), t.TempDir()
	one, two := join(t, b, "one"), join(t, b, "two")
	key := clusterKey(t, dir)
	var not *NotWriterError
	if err := one.SaveSharedState(ctx, key, []byte("early")); !errors.As(err, &not) {
		t.Errorf("a node that does not write has saved: %v", err)
	}
	one.lead(t)
	load := func(want string) {
		t.Helper()
		if got, err := two.LoadSharedState(ctx, clusterKey(t, dir)); err != nil || string(got) != want {
			t.Errorf("loaded %q, %v, not %q", got, err, want)
		}
	}
	load("")
	for _, state := range []string{"webhook 1", "webhook 2", "webhook 3"} {
		if err := one.SaveSharedState(ctx, key, []byte(state)); err != nil {
			t.Fatal(err)
		}
		load(state)
	}
	kept := 0
	for o, err := range b.List(ctx, sharedStatePrefix, "") {
		data, _, bad := b.Get(ctx, o.Key, maxSharedState)
		if err != nil || bad != nil || bytes.Contains(data, []byte("webhook")) {
			t.Errorf("%s: %v %v %q", o.Key, err, bad, data)
		}
		kept++
	}
	if kept != 2 {
		t.Errorf("%d states are kept", kept)
	}
	two.lead(t)
	if err := two.SaveSharedState(ctx, key, []byte("of two")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := one.SaveSharedState(ctx, key, []byte("late")); !errors.As(err, &not) { // it believes that it leads
			t.Errorf("a writer that was replaced has saved: %v", err)
		}
	}
	load("of two")
	if _, err := two.LoadSharedState(ctx, clusterKey(t, t.TempDir())); err == nil {
		t.Error("another key opens the state")
	}
}

// A state that was moved to another number is refused, as one that was changed.
func TestSideStateIsAuthenticated(t *testing.T) {
	ctx, b, dir := t.Context(), folder(t), t.TempDir()
	one, key := join(t, b, "one"), clusterKey(t, dir)
	one.lead(t)
	if err := one.SaveSharedState(ctx, key, []byte("state")); err != nil {
		t.Fatal(err)
	}
	data, _, err := b.Get(ctx, sharedStateKey(1), maxSharedState)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		sharedStateKey(1): bytes.Replace(data, []byte(`"epoch":1`), []byte(`"epoch":9`), 1),
		sharedStateKey(2): data,
	} {
		if err := b.Put(ctx, name, data); err != nil {
			t.Fatal(err)
		}
		if _, err := one.LoadSharedState(ctx, key); err == nil {
			t.Errorf("%s was taken", name)
		}
		if err := b.Delete(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
}
