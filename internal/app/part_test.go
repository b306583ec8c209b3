package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// TestRun holds a process to starting its parts in order and stopping in reverse those that have started.
func TestRun(t *testing.T) {
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
		{name: "one is done", fails: "run c", err: errDone, want: "+a +b +c -c -b -a"},
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
			var parts []part
			for _, name := range []string{"a", "b", "c"} {
				parts = append(parts, part{
					name:  name,
					start: func(context.Context) error { return step("+", "start", name) },
					run: func(ctx context.Context) error {
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
						if context.Cause(ctx) == errDone {
							t.Error("clients are told errDone as the cause")
						}
						return nil
					},
					stop: func() error { return step("-", "stop", name) },
				})
			}
			parts = append(parts, part{name: "with nothing to do"}, part{name: "last", start: func(context.Context) error {
				if !strings.HasPrefix(tt.fails, "run") {
					end()
				}
				return nil
			}})
			err := run(ctx, slog.New(slog.DiscardHandler), parts)
			if want := tt.err; want != errDone && !errors.Is(err, want) || (want == nil || want == errDone) && err != nil {
				t.Errorf("got %v, want %v", err, want)
			}
			if all := strings.Join(got, " "); all != tt.want {
				t.Errorf("%s, want %s", all, tt.want)
			}
		})
	}
}
