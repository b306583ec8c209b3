// Command rehearsal plays everything at once: three nodes of a cluster on an object store, a mirror, a fallback, a waiting
// room, a proxy in front, a registry that releases and misbehaves, clients that compare every byte, an attacker, and a scenario
// that kills, stops, fills, flips, upgrades, reloads, withdraws and loses what an operator may see happen in a bad year.
//
// All are real processes on the loopback. The scenario follows from a seed. In the end the command says what clients noticed,
// by cause and event, checks what must hold whatever happens, writes a page that shows it, and fails where something did not
// hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bench/internal/assault"
)

type options struct {
	larder         string
	next           string
	gatewayProgram string
	page           string
	only           string
	keep           bool
	seed           uint64
	length         time.Duration
	every          time.Duration
	clients        int
	queue          int
	users          int
}

// perMinute is how many visitors may come into the room in a minute.
func (o *options) perMinute() int { return max(1, o.users*2/3) }

func main() {
	assault.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rehearsal:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("rehearsal", flag.ContinueOnError)
	flags.StringVar(&o.larder, "larder", "bin/larder", "the `program` to rehearse with")
	flags.StringVar(&o.next, "next", "", "the `program` that upgrades go to; by default the same")
	flags.StringVar(&o.gatewayProgram, "gateway", "", "the object store's `program`, as make bin/gateway builds it; without, the bucket is a folder")
	flags.StringVar(&o.page, "page", "rehearsal.html", "the `file` to write the page to")
	flags.StringVar(&o.only, "only", "", "have only events happen whose kind contains one of these `words`, separated by commas")
	flags.BoolVar(&o.keep, "keep", false, "keep the folder with all data and logs; it is kept in any case where a check fails")
	flags.Uint64Var(&o.seed, "seed", 0, "what the scenario follows from; 0 draws one")
	minutes := flags.Float64("minutes", 60, "how long it takes, without start and checks")
	flags.DurationVar(&o.every, "every", 5*time.Second, "how often the registry releases")
	flags.IntVar(&o.clients, "clients", 2, "how many clients ask at each entrance")
	flags.IntVar(&o.queue, "queue", 0, "how many visitors come to the waiting room; by default 10,000, and fewer where there is less than an hour")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.length = time.Duration(*minutes * float64(time.Minute))
	if o.length < time.Minute {
		return o, errors.New("-minutes: at least one is needed")
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if o.queue == 0 {
		o.queue = min(10_000, int(10_000**minutes/60))
	}
	o.users = max(10, o.queue/20)
	return o, err
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if runtime.GOOS != "linux" {
		return errors.New("a loopback with many addresses and /proc are needed, which Linux has")
	}
	for _, program := range []*string{&o.larder, &o.next} {
		if *program != "" {
			if *program, err = filepath.Abs(*program); err != nil {
				return err
			}
		}
	}
	folder, err := os.MkdirTemp("", "larder-rehearsal-")
	if err != nil {
		return err
	}
	fmt.Printf("The seed is %d, and everything is in %s.\n", o.seed, folder)
	p := &play{options: o, folder: folder, library: newLibrary(), notes: newNotes(), random: rand.New(rand.NewPCG(o.seed, 1))}
	ok := false
	defer func() {
		p.end()
		if ok && !o.keep {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	if err := p.build(ctx); err != nil {
		return err
	}
	p.notes.begin = time.Now()
	if err := p.perform(ctx); err != nil {
		return err
	}
	ended := time.Now()
	checks := p.judge(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	page, err := p.notes.page(&o, ended, checks)
	if err == nil {
		err = os.WriteFile(o.page, page, 0o644)
	}
	if err != nil {
		return err
	}
	ok = true
	for _, c := range checks {
		mark := "ok  "
		if !c.OK {
			mark, ok = "FAIL", false
		}
		fmt.Printf("%s  %s: %s\n", mark, c.Name, c.Said)
	}
	fmt.Println("The page is", o.page)
	if !ok {
		return fmt.Errorf("not everything held; -seed %d plays the same scenario again; data and logs are in %s", o.seed, folder)
	}
	return nil
}
