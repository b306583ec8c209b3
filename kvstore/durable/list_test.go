package durable

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A model is what storage should be: a map.
type model map[string]string

// list is List by the book.
func (m model) list(o ListOptions) (got []Entry) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(key, o.Prefix) && key >= o.Start && (o.StartAfter == "" || key > o.StartAfter) && (o.End == "" || key < o.End) {
			got = append(got, Entry{key, []byte(m[key])})
		}
	}
	if o.Reverse {
		slices.Reverse(got)
	}
	if o.Limit > 0 && len(got) > o.Limit {
		got = got[:o.Limit]
	}
	return got
}

func show(entries []Entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%q=%q ", e.Key, e.Value)
	}
	return b.String()
}

// What is listed is partly in the store and partly only in memory.
func TestList(t *testing.T) {
	ns := scripts(t, start(t), Limits{})
	o := ns.Object("a")
	stored := []string{"a", "ab", "b", "ba", "bb", "c", "\xff", "\xff\xff", "gone", "changed"}
	for _, name := range []string{"a", "a\x01", "B"} { // the others must not show
		do(t, ns.Object(name), func(ctx context.Context, s *State) error {
			for _, key := range stored {
				if err := s.Put(ctx, key, []byte(name)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	do(t, o, func(ctx context.Context, s *State) error {
		_ = s.Put(ctx, "changed", []byte("new"))
		_ = s.Put(ctx, "bc", []byte("new"))
		_ = s.Put(ctx, "\x00", []byte("new"))
		_ = s.Delete(ctx, "gone")
		_ = s.Delete(ctx, "never was")
		for _, test := range []struct {
			options ListOptions
			want    string
		}{
			{ListOptions{}, `"\x00" "a" "ab" "b" "ba" "bb" "bc" "c" "changed" "\xff" "\xff\xff"`},
			{ListOptions{Limit: 3}, `"\x00" "a" "ab"`},
			{ListOptions{Reverse: true}, `"\xff\xff" "\xff" "changed" "c" "bc" "bb" "ba" "b" "ab" "a" "\x00"`},
			{ListOptions{Reverse: true, Limit: 4}, `"\xff\xff" "\xff" "changed" "c"`},
			{ListOptions{Prefix: "b"}, `"b" "ba" "bb" "bc"`},
			{ListOptions{Prefix: "b", Reverse: true, Limit: 2}, `"bc" "bb"`},
			{ListOptions{Prefix: "\xff"}, `"\xff" "\xff\xff"`},
			{ListOptions{Prefix: "bx"}, ``},
			{ListOptions{Start: "ba"}, `"ba" "bb" "bc" "c" "changed" "\xff" "\xff\xff"`},
			{ListOptions{StartAfter: "ba"}, `"bb" "bc" "c" "changed" "\xff" "\xff\xff"`},
			{ListOptions{Start: "b0", End: "bc"}, `"ba" "bb"`},
			{ListOptions{End: "ab"}, `"\x00" "a"`},
			{ListOptions{Start: "b", End: "b"}, ``},
			{ListOptions{Start: "c", End: "a"}, ``},
			{ListOptions{Prefix: "b", Start: "a", End: "z"}, `"b" "ba" "bb" "bc"`},
			{ListOptions{Prefix: "b", StartAfter: "ba", End: "bc", Reverse: true}, `"bb"`},
			{ListOptions{Start: "b", End: "c", Reverse: true, Limit: 3}, `"bc" "bb" "ba"`},
			{ListOptions{Prefix: "gone"}, ``},
		} {
			entries, err := s.List(ctx, test.options)
			var keys []string
			for _, e := range entries {
				keys = append(keys, fmt.Sprintf("%q", e.Key))
				if want := map[bool]string{true: "new", false: "a"}[e.Key == "changed" || e.Key == "bc" || e.Key == "\x00"]; string(e.Value) != want {
					t.Errorf("%+v: %q is %q", test.options, e.Key, e.Value)
				}
			}
			if got := strings.Join(keys, " "); got != test.want || err != nil {
				t.Errorf("%+v: got %s, %v, want %s", test.options, got, err, test.want)
			}
		}
		for _, bad := range []ListOptions{{Start: "a", StartAfter: "a"}, {Limit: -1}} {
			if _, err := s.List(ctx, bad); err == nil {
				t.Errorf("%+v was accepted", bad)
			}
		}
		return nil
	})
}

func TestBounds(t *testing.T) {
	o := scripts(t, start(t), Limits{}).Object("a")
	do(t, o, func(ctx context.Context, s *State) error {
		long, large := strings.Repeat("k", MaxKeyBytes), make([]byte, MaxValueBytes)
		if err := s.Put(ctx, long, large); err != nil {
			t.Error(err)
		}
		if value, ok, err := s.Get(ctx, long); len(value) != len(large) || !ok || err != nil {
			t.Errorf("got %d bytes, %v, %v", len(value), ok, err)
		}
		if s.Put(ctx, long+"k", nil) == nil || s.Put(ctx, "", nil) == nil || s.Put(ctx, "k", append(large, 0)) == nil || s.Delete(ctx, long+"k") == nil {
			t.Error("what is too large was accepted")
		}
		if _, _, err := s.Get(ctx, long+"k"); err == nil {
			t.Error("a key that is too long was accepted")
		}
		keys := make([]string, MaxKeys)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
			if i%2 == 0 {
				if err := s.Put(ctx, keys[i], []byte(keys[i])); err != nil {
					t.Error(err)
				}
			}
		}
		found, err := s.GetAll(ctx, keys)
		if len(found) != MaxKeys/2 || string(found["126"]) != "126" || err != nil {
			t.Errorf("got %d of %d, %v", len(found), MaxKeys, err)
		}
		if _, err := s.GetAll(ctx, append(keys, "one more")); err == nil {
			t.Error("too many keys were accepted")
		}
		for i := range MaxWriteBytes/MaxValueBytes + 1 {
			if err = s.Put(ctx, fmt.Sprint("large", i), large); err != nil {
				break
			}
		}
		if err == nil {
			t.Error("a write that is too large was accepted")
		}
		return s.DeleteAll(ctx)
	})
}

// FuzzStorage compares what objects store with a map: each byte of the program is an
// operation, and the object leaves memory now and then.
func FuzzStorage(f *testing.F) {
	f.Add([]byte("pa1pb2l\x00e\x00gatdaTl\x03"))
	f.Add([]byte("pa1ePa2pb1lxlyctpa1rpc1Rl\xffxl\x07DpaEl"))
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if len(bytes) > 300 {
			return
		}
		r := start(t)
		ns := scripts(t, r, Limits{Live: 1, CacheBytes: 600})
		want := make(model)
		p := &program{t, bytes}
		for len(p.bytes) > 0 {
			do(t, ns.Object("a"), func(ctx context.Context, s *State) error {
				p.run(ctx, s, want)
				return nil
			})
			do(t, ns.Object("b"), func(ctx context.Context, s *State) error { return nil })
		}
		if n := ns.class.cached.Load(); n > 600 || n < 0 {
			t.Errorf("%d bytes are cached", n)
		}
	})
}

// A program is the operations that are left to do.
type program struct {
	t     *testing.T
	bytes []byte
}

func (p *program) next() byte {
	if len(p.bytes) == 0 {
		return 0
	}
	b := p.bytes[0]
	p.bytes = p.bytes[1:]
	return b
}

func (p *program) key() string {
	keys := []string{"a", "aa", "ab", "b", "\x00", "\xff", "\xff\xff", "a\x00"}
	return keys[int(p.next())%len(keys)]
}

func (p *program) bound() string {
	if b := p.next(); b%2 == 0 {
		return p.key()
	}
	return ""
}

func (p *program) option() Option { return Option(p.next() % 8) }

func (p *program) check(err error) {
	if err != nil {
		p.t.Fatal(err)
	}
}

// run does operations, to the state and to the model, up to the end of an event or a transaction. It reports whether the
// transaction is kept.
func (p *program) run(ctx context.Context, s *State, m model) bool {
	for len(p.bytes) > 0 {
		switch p.next() % 9 {
		case 0, 1:
			k, v := p.key(), fmt.Sprint(p.next())
			p.check(s.Put(ctx, k, []byte(v), p.option()))
			m[k] = v
		case 2:
			k := p.key()
			p.check(s.Delete(ctx, k, p.option()))
			delete(m, k)
		case 3:
			k := p.key()
			value, ok, err := s.Get(ctx, k, p.option())
			if v, has := m[k]; string(value) != v || ok != has || err != nil {
				p.t.Fatalf("%q is %q, %v, %v; want %q, %v", k, value, ok, err, v, has)
			}
		case 4:
			p.list(ctx, s, m)
		case 5:
			if s.tx != nil {
				return p.next()%2 == 0
			}
			p.transaction(ctx, s, m)
		case 6:
			p.check(s.DeleteAll(ctx, p.option()))
			clear(m)
		case 7:
			p.check(s.Sync(ctx))
		case 8:
			if s.tx == nil {
				return true
			}
		}
	}
	return true
}

func (p *program) list(ctx context.Context, s *State, m model) {
	o := ListOptions{Prefix: p.bound(), End: p.bound(), Reverse: p.next()%2 == 0, Limit: int(p.next() % 4)}
	if p.next()%2 == 0 {
		o.Start = p.bound()
	} else {
		o.StartAfter = p.bound()
	}
	entries, err := s.List(ctx, o, p.option())
	if got, want := show(entries), show(m.list(o)); got != want || err != nil {
		p.t.Fatalf("%+v: got %s, %v, want %s", o, got, err, want)
	}
}

func (p *program) transaction(ctx context.Context, s *State, m model) {
	after := maps.Clone(m)
	err := s.Transaction(ctx, func(ctx context.Context, tx *State) error {
		if p.run(ctx, tx, after) {
			return nil
		}
		return context.Canceled
	})
	if err == nil {
		clear(m)
		maps.Copy(m, after)
	}
}
