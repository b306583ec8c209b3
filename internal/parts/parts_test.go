package parts

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// TestGroup holds a group to stopping in reverse order the parts that were added.
func TestGroup(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name  string
		fails string // "start b": what fails or ends, and of which part
		err   error
		want  string
	}{
		{name: "told to end", want: "+a +b +c -c -b -a"},
		{name: "the first cannot start", fails: "start a", err: broken, want: "+a"},
		{name: "another cannot start", fails: "start b", err: broken, want: "+a +b -a"},
		{name: "one cannot go on", fails: "run b", err: broken, want: "+a +b +c -c -b -a"},
		{name: "one is done", fails: "run c", err: ErrDone, want: "+a +b +c -c -b -a"},
		{name: "one cannot stop", fails: "stop b", err: broken, want: "+a +b +c -c -b -a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var mu sync.Mutex
			var got []string
			running := 0
			step := func(mark, what, name string) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, mark+name)
				if mark == "-" && running > 0 {
					t.Errorf("%s stops while %d run", name, running)
				}
				if tt.fails == what+" "+name {
					return tt.err
				}
				return nil
			}
			g := NewGroup(ctx, slog.New(slog.DiscardHandler))
			role := func() error {
				for _, name := range []string{"a", "b", "c"} {
					if err := step("+", "start", name); err != nil {
						return err
					}
					g.Add(Part{
						Name: name,
						Run: func(ctx context.Context) error {
							mu.Lock()
							running++
							mu.Unlock()
							defer func() {
								mu.Lock()
								running--
								mu.Unlock()
							}()
							if tt.fails == "run "+name {
								return tt.err
							}
							<-ctx.Done()
							if context.Cause(ctx) == ErrDone {
								t.Error("clients are told ErrDone as the cause")
							}
							return nil
						},
						Stop: func() error { return step("-", "stop", name) },
					})
				}
				g.Add(Part{Name: "with nothing to do"})
				if !strings.HasPrefix(tt.fails, "run") {
					end()
				}
				return nil
			}
			err := g.Wait(role())
			if want := tt.err; want != ErrDone && !errors.Is(err, want) || (want == nil || want == ErrDone) && err != nil {
				t.Errorf("got %v, want %v", err, want)
			}
			if all := strings.Join(got, " "); all != tt.want {
				t.Errorf("%s, want %s", all, tt.want)
			}
		})
	}
}

// Parts that end early have ended when EndEarly returns, and the others go on.
func TestEndEarly(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	g := NewGroup(ctx, slog.New(slog.DiscardHandler))
	early, late := make(chan struct{}), make(chan struct{})
	wait := func(done chan struct{}) func(context.Context) error {
		return func(ctx context.Context) error {
			<-ctx.Done()
			close(done)
			return nil
		}
	}
	g.AddEarly(Part{Name: "early", Run: wait(early)})
	g.Add(Part{Name: "late", Run: wait(late)})
	g.EndEarly()
	select {
	case <-early:
	default:
		t.Error("the early part runs")
	}
	select {
	case <-late:
		t.Error("the late part has ended")
	default:
	}
	end()
	if err := g.Wait(nil); err != nil {
		t.Error(err)
	}
	<-late
}
