package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot/schedule"
)

// What `larder schedule` asks.
type (
	scheduleListRequest struct {
		After string `json:"after,omitempty"` // an id; "" from the first
	}
	scheduleIDRequest struct {
		ID string `json:"id"`
	}
)

// scheduleAtOnce is how many requests one answer has.
const scheduleAtOnce = 100

// scheduleOperations are the operations about scheduled requests.
func (f *folder) scheduleOperations() map[string]admin.Operation {
	return map[string]admin.Operation{
		"schedule-add": admin.Typed(func(ctx context.Context, r schedule.Request, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return e.schedule.Post(ctx, "", r)
		}),
		"schedule-list": admin.Typed(func(ctx context.Context, r scheduleListRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return e.schedule.List(ctx, r.After, scheduleAtOnce)
		}),
		"schedule-show": admin.Typed(func(ctx context.Context, r scheduleIDRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return e.schedule.Get(ctx, r.ID)
		}),
		"schedule-remove": admin.Typed(func(ctx context.Context, r scheduleIDRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return nil, e.schedule.Remove(ctx, r.ID)
		}),
	}
}

func newSchedule(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Send HTTP requests at their time, once or again and again",
		Long: `Send HTTP requests at their time, once or again and again, each at least once, whoever restarts in between. Programs
have the same on the admin socket: see docs/webhooks.md.`,
		Example: `  larder schedule add https://ci.example.com/nightly --every 24h --method POST
  larder schedule list
  larder schedule remove 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newScheduleAdd(a), newScheduleList(a), newScheduleShow(a), newScheduleRemove(a))
	return cmd
}

func newScheduleAdd(a *app) *cobra.Command {
	var r schedule.Request
	var at string
	var every time.Duration
	var headers []string
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Put a request on the schedule",
		Long: `Put a request on the schedule: at once, at a time, or at an interval. It is sent until it is answered with 2xx, after
longer and longer pauses, for three days at most, or until its next time has come. The URL may be on any host, this one
too.` + scheduleReach,
		Example: `  larder schedule add https://ci.example.com/nightly --every 24h --method POST
  larder schedule add http://127.0.0.1:9000/report --at 2027-01-01T00:00:00Z --header 'Authorization: Bearer x'`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&at, "at", "", "`TIME` to send it first, such as 2027-01-01T00:00:00Z; where it is not given, now, or after one interval")
	f.Var(durationValue(&every, 0), "every", "`INTERVAL` to send it again after, in whole seconds; where it is not given, it is sent once")
	f.StringVar(&r.Method, "method", "GET", "`METHOD` of the request")
	f.StringArrayVar(&headers, "header", nil, "a header, as `NAME: VALUE`; repeatable")
	f.StringVar(&r.Body, "body", "", "`TEXT` of the body")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		r.URL, r.TriggerEverySeconds = args[0], int64(every/time.Second)
		if every%time.Second != 0 {
			return usageError{errors.New("--every: it must be whole seconds")}
		}
		if at != "" {
			t, err := time.Parse(time.RFC3339, at)
			if err != nil {
				return usageError{fmt.Errorf("--at: %q must be a time such as 2027-01-01T00:00:00Z", at)}
			}
			r.TriggerAt = t.UnixMilli()
		}
		for _, h := range headers {
			name, value, ok := strings.Cut(h, ":")
			if !ok {
				return usageError{errors.New("--header: want NAME: VALUE")} // it may be a secret
			}
			if r.Headers == nil {
				r.Headers = make(map[string]string)
			}
			r.Headers[name] = strings.TrimSpace(value)
		}
		if err := r.Check(); err != nil {
			return usageError{err}
		}
		return a.reach(ctx, nil, a.openForWork, func(client *admin.Client) error {
			state, err := admin.Call[schedule.State, any](ctx, client, "schedule-add", r, nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "Request %s is on the schedule.\n", state.ID)
			return err
		})
	})
	return cmd
}

// scheduleReach ends the description of what changes the schedule.
const scheduleReach = `

It speaks to the larder process that runs on the data folder; where none runs, it works alone, and requests are sent
when one does.`

func newScheduleList(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the requests on the schedule",
		Long: `List the requests on the schedule, in the order of their ids: when each is sent next, and how the last attempt went.
What is over is listed for a day.` + askedWhom,
		Example: `  larder schedule list
  larder schedule list --json | jq '.[] | select(.status == "given-up")'`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			all := []schedule.State{}
			for after := ""; ; after = all[len(all)-1].ID {
				some, err := admin.Call[[]schedule.State, any](ctx, client, "schedule-list", scheduleListRequest{after}, nil)
				if err != nil {
					return err
				}
				all = append(all, some...)
				if len(some) == 0 {
					break
				}
			}
			if asJSON {
				return printJSON(a.stdout, all)
			}
			return printSchedule(a.stdout, all)
		})
	})
	return cmd
}

func printSchedule(w io.Writer, all []schedule.State) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "Nothing is on the schedule; `larder schedule add URL` puts a request there.")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tREQUEST\tSTATUS\tNEXT\tEVERY\tDELIVERED\tLAST ATTEMPT")
	for _, s := range all {
		next, every := "-", "once"
		if !s.Next.IsZero() {
			next = s.Next.Format(time.RFC3339)
		}
		if n := s.Request.TriggerEverySeconds; n > 0 {
			every = (time.Duration(n) * time.Second).String()
		}
		fmt.Fprintf(table, "%s\t%s %s\t%s\t%s\t%s\t%d\t%s\n", plain(s.ID), cmp.Or(s.Request.Method, "GET"), plain(s.Request.URL), s.Status, next, every, s.Deliveries, lastAttempt(s))
	}
	return table.Flush()
}

// lastAttempt tells how the last attempt to send a request went.
func lastAttempt(s schedule.State) string {
	switch {
	case s.Last.IsZero():
		return "none"
	case s.Problem == "":
		return fmt.Sprintf("%s: %d", humanize.Time(s.Last), s.Answer)
	}
	return fmt.Sprintf("%s: %s (%s)", humanize.Time(s.Last), plain(s.Problem), count(s.Attempts, "failure", "failures"))
}

func newScheduleShow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Print a request on the schedule, and how it fares, as JSON",
		Long:    "Print a request on the schedule as JSON, with its headers and body, and how it fares." + askedWhom,
		Example: `  larder schedule show 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
		Args:    arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			state, err := admin.Call[schedule.State, any](ctx, client, "schedule-show", scheduleIDRequest{args[0]}, nil)
			if err != nil {
				return err
			}
			return printJSON(a.stdout, state)
		})
	})
	return cmd
}

func newScheduleRemove(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remove ID",
		Short:   "Take a request off the schedule",
		Long:    "Take a request off the schedule. What is being sent at that moment may still arrive." + scheduleReach,
		Example: `  larder schedule remove 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
		Args:    arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		return a.reach(ctx, nil, a.openExisting, func(client *admin.Client) error {
			if _, err := admin.Call[any, any](ctx, client, "schedule-remove", scheduleIDRequest{args[0]}, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(a.stdout, "Request %s is off the schedule.\n", plain(args[0]))
			return err
		})
	})
	return cmd
}
