// Command attack attacks a running Larder from one address, and measures what a client at another address gets: before,
// during and after.
//
// The real program serves a small real store on the loopback, all of whose addresses (127.0.0.0/8) are sources: the
// attacker is 127.0.0.2, the victim 127.0.0.3, proxies are 127.0.0.1. Each attack runs in each way that applies: over
// HTTP/1.1, over TLS, over HTTP/2, behind nginx, and behind a relay that speaks the PROXY protocol. What is printed is the
// victim's share of requests that succeed, its p50 and p99, and the memory and processor time of Larder.
//
// It fails where less than 99.9 % of the victim's requests succeed during an attack, or where p99 is more than ten times
// that before. Attacker, victim and server share this machine's processors. So p99 before counts as 10 ms at least, the victim
// is measured from two seconds after hundreds of attackers have begun to connect, what is below the bar is tried three
// times, and a connection that was closed comes again after a tenth of a second, as over a network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/larder-cdn/larder/bench/internal/assault"
)

const (
	attacker = "127.0.0.2"
	victim   = "127.0.0.3"
	relaying = "127.0.0.1" // proxies; Larder listens there, too

	leastSuccess = 0.999
	mostSlower   = 10
	// floor is the least that p99 before an attack counts as.
	floor = 10 * time.Millisecond
	// tries is how often an attack is tried that is below the bar: the machine may be busy with something else.
	tries = 3
)

type options struct {
	larder   string
	only     string
	quick    bool
	duration time.Duration
}

func main() {
	assault.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("attack", flag.ContinueOnError)
	flags.StringVar(&o.larder, "larder", "bin/larder", "the `program` to attack")
	flags.StringVar(&o.only, "only", "", "run only attacks and ways whose \"attack/way\" contains one of these `words`, separated by commas")
	flags.BoolVar(&o.quick, "quick", false, "each attack in one way only, for less time, and p99 is told but not judged: that takes more than two seconds")
	flags.DurationVar(&o.duration, "duration", 8*time.Second, "how long the victim asks before, during and after")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if runtime.GOOS != "linux" {
		return errors.New("a loopback with many addresses and /proc are needed, which Linux has")
	}
	if o.quick {
		o.duration = min(o.duration, 2*time.Second)
	}
	var err error
	if o.larder, err = filepath.Abs(o.larder); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "larder-attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := fill(ctx, o.larder, folder); err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "attack\tway\twhen\trequests\tsucceed\tp50\tp99\tmemory\tprocessors\t")
	var failed []string
	for _, a := range attacks {
		for i, w := range a.ways {
			name := a.name + "/" + w
			if !selected(name, o.only) || o.quick && o.only == "" && i > 0 {
				continue
			}
			if why := missing(w); why != "" {
				fmt.Fprintln(os.Stderr, name+" is skipped:", why)
				continue
			}
			verdict := "-"
			for try := 0; verdict != "" && try < tries; try++ {
				if verdict, err = measure(ctx, &o, folder, a, w, table); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				table.Flush()
			}
			if verdict != "" {
				failed = append(failed, name+": "+verdict)
			}
		}
	}
	if len(failed) > 0 {
		return errors.New("below the bar:\n  " + strings.Join(failed, "\n  "))
	}
	return nil
}

func selected(name, only string) bool {
	for word := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// measure runs one attack in one way, and returns what is below the bar.
func measure(ctx context.Context, o *options, folder string, a attack, way string, table *tabwriter.Writer) (verdict string, err error) {
	t, err := start(ctx, o.larder, folder, a, way)
	if err != nil {
		return "", err
	}
	defer t.stop()
	v := newVictim(t)
	defer v.close()
	v.ask(ctx, time.Second) // what is cold would count against before
	kept := &keptConnections{t: t}
	if a.from > 1 {
		kept.open(ctx)
		defer kept.close()
	}
	var seen [3]result
	for i, when := range []string{"before", "during", "after"} {
		var stop func()
		if when == "during" {
			if stop, err = launch(ctx, a, t); err != nil {
				return "", err
			}
		}
		u := t.usage()
		seen[i] = v.ask(ctx, o.duration)
		now := t.usage()
		if when == "during" && a.also != nil {
			if err := a.also(ctx, v); err != nil {
				verdict = err.Error()
			}
		}
		if cut := kept.countCut(); cut > 0 && verdict == "" {
			verdict = fmt.Sprintf("%d of the victim's %d kept connections were cut %s the attack", cut, keptCount, when)
		}
		if stop != nil {
			stop()
		}
		r := &seen[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%.2f %%\t%.1f ms\t%.1f ms\t%d MiB\t%.2f\t\n", a.name, way, when, r.asked(), 100*r.success(),
			ms(r.quantile(0.5)), ms(r.quantile(0.99)), now.Memory>>20, now.Since(u))
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	before, during := &seen[0], &seen[1]
	bar := mostSlower * max(floor, before.quantile(0.99))
	switch {
	case before.success() < 1:
		return fmt.Sprintf("before the attack already %d requests fail: %v", len(before.errors), before.errors[0]), nil
	case during.success() < leastSuccess:
		return fmt.Sprintf("%.2f %% of the victim's requests succeed, of which %.1f %% are due: %v", 100*during.success(), 100*leastSuccess, during.errors[0]), nil
	case during.quantile(0.99) > bar && !o.quick:
		return fmt.Sprintf("p99 is %.1f ms, and the bar is %.1f ms", ms(during.quantile(0.99)), ms(bar)), nil
	}
	return verdict, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
