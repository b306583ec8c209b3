package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/simulate"
)

func newRoom(a *cli) *cobra.Command {
	return group("room", "Look at, change and try out waiting rooms",
		"Look at waiting rooms, change them, and try out how they let visitors in. See docs/waiting-room.md.",
		"  larder room simulate --out ./simulated",
		newRoomStatus(a), newRoomSet(a), newRoomPreview(a), newRoomSimulate(a))
}

// simulation is the flags of `larder room simulate`.
type simulation struct {
	methods   []string
	allocator string
	profile   string
	history   int
	out       string
	options   simulate.Options
}

func newRoomSimulate(a *cli) *cobra.Command {
	s := simulation{methods: []string{"fifo", "random"}, allocator: "counter", profile: "together", history: 1}
	o := &s.options
	o.Settings.TotalActiveUsers, o.Settings.NewUsersPerMinute, o.Settings.SessionDuration, o.Settings.CurveFactor = 1000, 1000, time.Minute, 1
	o.Visitors, o.Over, o.Stay = 10_000, 30*time.Minute, time.Minute
	o.DataCentres, o.Workers, o.Delay, o.Seed = 2, 3, 50*time.Millisecond, 1
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a waiting room in virtual time: a table, heat maps of the waits, a chart",
		Long: `Run visitors through a waiting room in virtual time, with the same code that decides in a real one, and print the
minutes in a table. With --out it writes two SVG pictures for each method: a heat map of the waits by the minute of
arrival, and a chart of active and waiting users with the limit. The same flags give the same result. Without any flag
it is the experiment in docs/waiting-room.md: first in, first out, then at random.`,
		Example: `  larder room simulate --out ./simulated
  larder room simulate --arrivals 2000 --over 10m --total 100 --per-minute 50 --profile bursts
  larder room simulate --method fifo --allocator even --loss 0.2 --delay 2s`,
		Args: arguments(0, 0),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(settings.Count(&o.Visitors, 1), "arrivals", "how many visitors come")
	f.Var(settings.Duration(&o.Over, time.Second), "over", "the time in which they come")
	f.Var(settings.Choice(&s.profile, "together", "uniform", "bursts", "shifts"), "profile", "how they come: all at the start, with tickets from the time before; evenly; half of them in bursts; or through data centres that take turns")
	f.Var(settings.Duration(&o.Stay, time.Second), "stay", "how long each keeps sending requests once admitted, on average")
	f.Var(settings.Duration(&o.Patience, 0), "patience", "how long they wait on average before they leave; 0 is for ever")
	f.Var(settings.Count(&o.Settings.TotalActiveUsers, 1), "total", "total_active_users of the room")
	f.Var(settings.Count(&o.Settings.NewUsersPerMinute, 1), "per-minute", "new_users_per_minute of the room")
	f.Var(settings.Duration(&o.Settings.SessionDuration, time.Minute), "session", "session_duration of the room")
	f.StringSliceVar(&s.methods, "method", s.methods, "fifo, random, passthrough or reject; several are run one after the other")
	f.Var(settings.Choice(&s.allocator, "counter", "even", "adaptive"), "allocator", "how slots are divided")
	f.Float64Var(&o.Settings.CurveFactor, "curve-factor", o.Settings.CurveFactor, "exponent of the adaptive allocator")
	f.Var(settings.Count(&s.history, 1), "history", "which minute's traffic decides the shares: 1, the one before, or 2")
	f.Var(settings.Count(&o.DataCentres, 1), "data-centres", "how many data centres there are, of different sizes")
	f.Var(settings.Count(&o.Workers, 1), "workers", "how many workers each has")
	f.Var(settings.Duration(&o.Delay, 0), "delay", "how long a message to or from the global object takes")
	f.Float64Var(&o.Loss, "loss", 0, "the part of these messages that is lost, from 0 to 0.95")
	f.Var(settings.Duration(&o.Settings.Skew, 0), "skew", "how far the clocks differ")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "seed of the random numbers")
	f.StringVar(&s.out, "out", "", "write the pictures, as SVG, into `DIR`")
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

// prepare returns the runs, or the mistake in the flags.
func (s *simulation) prepare() ([]simulate.Options, error) {
	o := s.options
	o.Profile = simulate.Profile(s.profile)
	o.Settings.HistoryMinutes = s.history
	if len(s.methods) == 0 {
		return nil, errors.New("--method names none; it takes fifo, random, passthrough or reject")
	}
	return o.Each(s.allocator, s.methods)
}

func (a *cli) simulate(cmd *cobra.Command, o simulate.Options, out string) error {
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
	files, err := result.Draw(out, string(o.Settings.Method))
	if len(files) > 0 {
		fmt.Fprintln(a.stdout, strings.Join(files, "\n")+"\n")
	}
	return err
}

func newRoomStatus(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [ROOM]",
		Short: "Show how full the waiting rooms are",
		Long: `Show how many users are in each waiting room of the running process, how many wait, and the longest wait. The page
/rooms on the private address shows the same, with charts of up to the last 30 days. On a node of a cluster these are
the users of all nodes; "recovering" says that the node which publishes has yet to hear from the others how many are
in, and "cut off" that it does not answer.`,
		Example: `  larder room status
  larder room status --json shop | jq '.[0].estimated_queued_users'`,
		Args: arguments(0, 1),
	}
	a.uses(cmd, dataFlags)
	asJSON := jsonFlag(cmd)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request := app.RoomsRequest{}
		if len(args) == 1 {
			request.Room = args[0]
		}
		statuses, err := ask(ctx, a, nil, app.OpRooms, request)
		if err != nil {
			return err
		}
		return a.print(*asJSON, statuses, func() error {
			table := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "ROOM\tSTATUS\tIN\tOF\tWAITING\tLONGEST WAIT\tCOVERS")
			for _, s := range statuses {
				status := strings.ReplaceAll(s.Status, "_", " ")
				if s.EventID != "" {
					status += " (" + s.EventID + ")"
				}
				if s.Recovering {
					status += ", recovering"
				}
				if s.CutOff {
					status += ", cut off"
				}
				wait := "-"
				if s.MaxMinutes > 0 {
					wait = fmt.Sprintf("%d min", s.MaxMinutes)
				}
				fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, status, s.Active, s.TotalActiveUsers, s.Queued, wait, strings.Join(s.Routes, ", "))
			}
			return table.Flush()
		})
	})
	return cmd
}

func newRoomSet(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set ROOM FIELD=VALUE…",
		Short: "Change a waiting room at once",
		Long: `Change fields of a waiting room of the running process, all of them or none. Names and values are as in the file of
rooms. They count instead of the file's, also after a restart; FIELD= without a value goes back to the file's.
All places and sessions stay. In a cluster the other nodes take it up within seconds, or when they are back, if they
have that room in common: run it on any node.`,
		Example: `  larder room set shop queue_all=true
  larder room set shop total_active_users=500 new_users_per_minute=100 queueing_method=random
  larder room set shop queue_all=`,
		Args: arguments(2, 100),
	}
	a.uses(cmd, dataFlags)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request := app.SetRoomRequest{Room: args[0], Fields: map[string]string{}}
		for _, arg := range args[1:] {
			field, value, ok := strings.Cut(arg, "=")
			if !ok || field == "" {
				return fmt.Errorf("%q must be FIELD=VALUE, such as queue_all=true", arg)
			}
			request.Fields[field] = value
		}
		if _, err := ask(ctx, a, nil, app.OpSetRoom, request); err != nil {
			return err
		}
		_, err := fmt.Fprintf(a.stdout, "Room %s has %s from now on.\n", text.Plain(args[0]), text.Plain(strings.Join(args[1:], ", ")))
		return err
	})
	return cmd
}

func newRoomPreview(a *cli) *cobra.Command {
	shown, tag := page.Preview{Method: "fifo"}, "en-US"
	cmd := &cobra.Command{
		Use:   "preview [TEMPLATE]",
		Short: "Print the page that waiting users see",
		Long: `Print the page that users of a waiting room see: your Mustache template with example values, or the built-in page
where no template is given. The names that a template may use are in docs/waiting-room.md.`,
		Example: `  larder room preview > page.html
  larder room preview --language ar > page.html
  larder room preview --method random page.mustache > page.html`,
		Args: arguments(0, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(settings.Choice(&shown.Method, "fifo", "random", "reject"), "method", "queueing method of the room")
	f.StringVar(&tag, "language", tag, "`LANGUAGE` of the room")
	f.BoolVar(&shown.QueueAll, "queue-all", false, "as if no user were let in")
	f.BoolVar(&shown.Event, "event", false, "as if an event started in half an hour")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var err error
		if shown.Language, err = language.Parse(tag); err != nil {
			return fmt.Errorf("--language %q must be a language such as en-US or de-DE", tag)
		}
		if len(args) == 1 {
			shown.Template = args[0]
		}
		html, err := shown.HTML(time.Now())
		if err != nil {
			return failure{err}
		}
		_, err = a.stdout.Write(html)
		return err
	}
	return cmd
}
