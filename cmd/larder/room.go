package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
	"github.com/larder-cdn/larder/server/waitingroom/simulate"
)

func newRoom(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "room",
		Short:   "Try out a waiting room",
		Long:    "Try out how a waiting room lets visitors in. See docs/waiting-room.md.",
		Example: "  larder room simulate --total 400 --out ./simulated",
		Args:    arguments(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRoomStatus(a), newRoomPreview(a), newRoomSimulate(a))
	return cmd
}

// simulation is what `larder room simulate` is asked for.
type simulation struct {
	methods   []string
	allocator string
	profile   string
	history   int
	out       string
	options   simulate.Options
}

func newRoomSimulate(a *app) *cobra.Command {
	s := simulation{methods: []string{"fifo", "random"}, allocator: "counter", profile: "together", history: 1}
	o := &s.options
	o.Settings = queue.Settings{TotalActiveUsers: 400, NewUsersPerMinute: 400, SessionDuration: time.Minute, CurveFactor: 1}
	o.Visitors, o.Over, o.Stay = 10_000, 30*time.Minute, time.Minute
	o.DataCentres, o.Workers, o.Delay, o.Seed = 2, 3, 50*time.Millisecond, 1
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a waiting room in virtual time: a table, heat maps of the waits, a chart",
		Long: `Run visitors through a waiting room in virtual time, with the same code that decides in a real one, and print the
minutes in a table. With --out it writes two pictures for each method, as PNG and SVG: a heat map of how long those
wait who arrive in each minute, and a chart of active and waiting users with the limit. The same flags give the same
result. Without any flag it is the experiment in docs/waiting-room.md, first in, first out, then at random.`,
		Example: `  larder room simulate --out ./simulated
  larder room simulate --arrivals 2000 --over 10m --total 100 --per-minute 50 --profile bursts
  larder room simulate --method fifo --allocator even --loss 0.2 --delay 2s`,
		Args: arguments(0, 0),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(countValue(&o.Visitors, 1), "arrivals", "how many visitors come")
	f.Var(durationValue(&o.Over, time.Second), "over", "the time in which they come")
	f.Var(choiceValue(&s.profile, "together", "uniform", "bursts", "shifts"), "profile", "how they come: all are there at the start with tickets from the time before; evenly; half of them in bursts; or through data centres that take turns")
	f.Var(durationValue(&o.Stay, time.Second), "stay", "how long each goes on sending requests once admitted, on average")
	f.Var(durationValue(&o.Patience, 0), "patience", "how long they wait on average before they leave; 0 is for ever")
	f.Var(countValue(&o.Settings.TotalActiveUsers, 1), "total", "total_active_users of the room")
	f.Var(countValue(&o.Settings.NewUsersPerMinute, 1), "per-minute", "new_users_per_minute of the room")
	f.Var(durationValue(&o.Settings.SessionDuration, time.Minute), "session", "session_duration of the room")
	f.StringSliceVar(&s.methods, "method", s.methods, "fifo, random, passthrough or reject; several are run one after the other")
	f.Var(choiceValue(&s.allocator, "counter", "even", "adaptive"), "allocator", "how slots are divided")
	f.Float64Var(&o.Settings.CurveFactor, "curve-factor", o.Settings.CurveFactor, "exponent of the adaptive allocator")
	f.Var(countValue(&s.history, 1), "history", "which minute's traffic decides the shares: 1, the one before, or 2")
	f.Var(countValue(&o.DataCentres, 1), "data-centres", "how many data centres there are, of different size")
	f.Var(countValue(&o.Workers, 1), "workers", "how many workers each has")
	f.Var(durationValue(&o.Delay, 0), "delay", "how long a message to or from the global object takes")
	f.Float64Var(&o.Loss, "loss", 0, "the part of them that gets lost, from 0 to 0.95")
	f.Var(durationValue(&o.Settings.Skew, 0), "skew", "how far the clocks differ")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of the random numbers")
	f.StringVar(&s.out, "out", "", "write the pictures into `DIR`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		runs, err := s.prepare()
		if err != nil {
			return err
		}
		for _, o := range runs {
			if err := a.simulate(cmd, o, s.out); err != nil {
				return failure{err}
			}
		}
		return nil
	}
	return cmd
}

// prepare makes the runs, and finds the mistakes in the flags.
func (s *simulation) prepare() ([]simulate.Options, error) {
	o := s.options
	o.Profile = simulate.Profile(s.profile)
	o.Settings.HistoryMinutes = s.history
	allocator, err := queue.ParseAllocator(s.allocator)
	if err != nil {
		return nil, err
	}
	o.Settings.Allocator = allocator
	if len(s.methods) == 0 {
		return nil, errors.New("--method names none; it takes fifo, random, passthrough or reject")
	}
	var runs []simulate.Options
	for _, name := range s.methods {
		if o.Settings.Method, err = queue.ParseMethod(name); err != nil {
			return nil, err
		}
		if err := o.Check(); err != nil {
			return nil, err
		}
		runs = append(runs, o)
	}
	return runs, nil
}

func (a *app) simulate(cmd *cobra.Command, o simulate.Options, out string) error {
	result, err := simulate.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s, %s\n\n", o.Settings.Method, o.Settings.Allocator)
	if err := result.Table(a.stdout); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	if out == "" {
		return nil
	}
	files, err := result.Draw(out, fmt.Sprint(o.Settings.Method))
	for _, file := range files {
		fmt.Fprintln(a.stdout, file)
	}
	if len(files) > 0 {
		fmt.Fprintln(a.stdout)
	}
	return err
}
