package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
)

// newSchedule returns the group of commands `larder schedule`, for HTTP requests that Larder sends at their time.
func newSchedule(a *cli) *cobra.Command {
	return newGroup("schedule", "Send HTTP requests at their time, once or again and again",
		`Send HTTP requests at their time, once or again and again, each at least once, whichever side restarts in between.
Programs have the same on the admin socket: see docs/webhooks.md.`,
		`  larder schedule add https://ci.example.com/nightly --every 24h --method POST
  larder schedule list
  larder schedule remove 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
		newScheduleAdd(a), newScheduleList(a), newScheduleShow(a), newScheduleRemove(a))
}

// newScheduleAdd returns the command `larder schedule add`, which puts an HTTP request on the schedule, and prints a sentence
// with its id. The request is sent by a running process only.
func newScheduleAdd(a *cli) *cobra.Command {
	var r notify.Request
	var at string
	var every time.Duration
	var headers []string
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Put a request on the schedule",
		Long: `Put a request on the schedule: at once, at a time, or at an interval. It is sent until it is answered with 2xx, after
longer and longer pauses, for three days at most, or until its next time has come. The URL may be on any host, this one
too.` + sentLater,
		Example: `  larder schedule add https://ci.example.com/nightly --every 24h --method POST
  larder schedule add http://127.0.0.1:9000/report --at 2027-01-01T00:00:00Z --header 'Authorization: Bearer x'`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&at, "at", "", "`TIME` to send it first, such as 2027-01-01T00:00:00Z; where it is not given, now, or after one interval")
	f.Var(settings.DurationValue(&every, 0), "every", "`INTERVAL` to send it again after, in whole seconds; where it is not given, it is sent once")
	f.StringVar(&r.Method, "method", "GET", "`METHOD` of the request")
	f.StringArrayVar(&headers, "header", nil, "a header, as `NAME: VALUE`; repeatable")
	f.StringVar(&r.Body, "body", "", "`TEXT` of the body")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		r.URL, r.TriggerEverySeconds = args[0], int64(every/time.Second)
		if every%time.Second != 0 {
			return settings.Mistakef("--every: it must be whole seconds")
		}
		if r.TriggerEverySeconds > notify.MaxEverySeconds {
			return settings.Mistakef("--every: it must be at most 8784h, which are 366 days")
		}
		if at != "" {
			t, err := time.Parse(time.RFC3339, at)
			if err != nil {
				return settings.Mistakef("--at: %q must be a time such as 2027-01-01T00:00:00Z", at)
			}
			if r.TriggerAt = t.UnixMilli(); r.TriggerAt < 0 || r.TriggerAt > notify.MaxTriggerAt {
				return settings.Mistakef("--at: %s must be a time from 1970 to 2261", at)
			}
		}
		for _, h := range headers {
			name, value, ok := strings.Cut(h, ":")
			if !ok {
				return settings.Mistakef("--header: want NAME: VALUE") // it may be a secret
			}
			if r.Headers == nil {
				r.Headers = make(map[string]string)
			}
			r.Headers[name] = strings.TrimSpace(value)
		}
		if err := r.Check(); err != nil {
			return settings.Mistake{Err: err}
		}
		state, err := runOperation(ctx, a, nil, a.openForWriting(app.WriterOptions{}), app.OpScheduleAdd, r, nil)
		if err == nil {
			_, err = fmt.Fprintf(a.stdout, "Request %s is on the schedule.\n", state.ID)
		}
		return err
	}))
}

// sentLater ends the description of what changes the schedule or the webhooks.
const sentLater = `

It speaks to the larder process that runs on the data folder; where none runs, it works alone, and requests are sent
when one does.`

// newScheduleList returns the command `larder schedule list`, which lists all scheduled requests in the order of their ids,
// also those that were delivered or given up within a day; one that was removed is gone at once.
func newScheduleList(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the requests on the schedule",
		Long: `List the requests on the schedule, in the order of their ids: when each is sent next, and how the last attempt went.
What is over is listed for a day.` + askedWhom,
		Example: `  larder schedule list
  larder schedule list --json | jq '.[] | select(.status == "given-up")'`,
	}
	a.addFlags(cmd, dataFlags)
	return setResponseAction(a, cmd, func(ctx context.Context, _ []string) ([]notify.State, error) {
		all := []notify.State{}
		err := a.withClient(ctx, nil, a.openForReading, func(client *app.Client) error {
			for after := ""; ; after = all[len(all)-1].ID {
				some, err := app.OpScheduleList.Ask(ctx, client, app.ScheduleListRequest{After: after}, nil)
				if err != nil || len(some) == 0 {
					return err
				}
				all = append(all, some...)
			}
		})
		return all, err
	}, func(all []notify.State) error { return printSchedule(a.stdout, all) })
}

// printSchedule writes a table of scheduled requests for people, or that there are none.
func printSchedule(w io.Writer, all []notify.State) error {
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
		last := describeLastAttempt(s.Last, s.Answer, s.Problem, formatCount(s.Attempts, "failure", "failures"))
		fmt.Fprintf(table, "%s\t%s %s\t%s\t%s\t%s\t%d\t%s\n",
			text.Plain(s.ID), cmp.Or(s.Request.Method, "GET"), text.Plain(s.Request.URL), s.Status, next, every, s.Deliveries, last)
	}
	return table.Flush()
}

// describeLastAttempt returns how long ago a request was last sent, with the status of the response, or with what failed and, in
// brackets, how many attempts have failed; "none" if last is zero, before the first.
func describeLastAttempt(last time.Time, status int, problem, failures string) string {
	switch {
	case last.IsZero():
		return "none"
	case problem == "":
		return fmt.Sprintf("%s: %d", humanize.Time(last), status)
	}
	return fmt.Sprintf("%s: %s (%s)", humanize.Time(last), text.Plain(problem), failures)
}

// newScheduleShow returns the command `larder schedule show`, which prints the scheduled request with an id as JSON, also its
// headers and body.
func newScheduleShow(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Print a request on the schedule, and how it fares, as JSON",
		Long:    "Print a request on the schedule as JSON, with its headers and body, and how it fares." + askedWhom,
		Example: `  larder schedule show 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
		Args:    checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		state, err := runReadOperation(ctx, a, nil, app.OpScheduleShow, app.IDRequest{ID: args[0]})
		if err != nil {
			return err
		}
		return printJSON(a.stdout, state)
	}))
}

// newScheduleRemove returns the command `larder schedule remove`, which removes the request with an id from the schedule.
func newScheduleRemove(a *cli) *cobra.Command {
	return setRemoveAction(a, &cobra.Command{
		Use:     "remove ID",
		Short:   "Take a request off the schedule",
		Long:    "Take a request off the schedule. What is being sent at that moment may still arrive." + sentLater,
		Example: `  larder schedule remove 3ZQ4KX7V2M5N6P7R8S9TABCDEF`,
	}, app.OpScheduleRemove, "Request %s is off the schedule.\n")
}

// setRemoveAction has cmd remove, by the operation o, what has the id in its argument, and returns cmd. done is the line that it
// prints then, a format for the id.
func setRemoveAction(a *cli, cmd *cobra.Command, o app.Operation[app.IDRequest, any, any], done string) *cobra.Command {
	cmd.Args = checkArgumentCount(1, 1)
	a.addFlags(cmd, dataFlags)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		_, err := runOperation(ctx, a, nil, a.openForWriting(app.WriterOptions{Existing: true}), o, app.IDRequest{ID: args[0]}, nil)
		if err == nil {
			_, err = fmt.Fprintf(a.stdout, done, text.Plain(args[0]))
		}
		return err
	}))
}

// newWebhook returns the group of commands `larder webhook`, which add, list and remove URLs that get messages about releases
// and waiting rooms.
func newWebhook(a *cli) *cobra.Command {
	return newGroup("webhook", "Notify other services of releases, and of events in waiting rooms",
		`Notify other services over HTTP of releases, or of events in waiting rooms. docs/webhooks.md describes messages,
their verification and retries.`,
		`  larder webhook add https://ci.example.com/hooks/larder
  larder webhook list`,
		newWebhookAdd(a), newWebhookList(a), newWebhookRemove(a))
}

// newWebhookAdd returns the command `larder webhook add`, which adds a webhook and prints its id and its secret, once. It sends
// no message itself.
func newWebhookAdd(a *cli) *cobra.Command {
	var request app.WebhookAddRequest
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Send a message to a URL for each release that is published, or about a waiting room",
		Long: `Send a signed message to a URL for each release that is published from now on; with --watch, also for withdrawals,
upstream changes and changes of the log; or, with --room, when the queue of a waiting room begins or ends, when it is
full, for its events, and when its settings change. A room that the running process does not have is refused; without a
process any name is accepted. The secret to verify messages with is printed once, here. The URL may be on any host, this
one too.` + sentLater,
		Example: `  larder webhook add https://ci.example.com/hooks/larder
  larder webhook add http://127.0.0.1:9000/rebuild --package jquery
  larder webhook add https://chat.example.com/hooks/shop --room shop`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags)
	cmd.Flags().StringVar(&request.Package, "package", "", "only releases of the package `NAME`")
	cmd.Flags().BoolVar(&request.Watch, "watch", false, "also send withdrawals, upstream changes, removed packages and new keys of the log")
	cmd.Flags().StringVar(&request.Room, "room", "", "send events of the waiting room `NAME` instead, * for all rooms")
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		request.URL = args[0]
		if err := notify.CheckURL(request.URL); err != nil {
			return settings.Mistake{Err: err}
		}
		return a.withClient(ctx, nil, a.openForWriting(app.WriterOptions{}), func(client *app.Client) error {
			added, err := app.OpWebhookAdd.Ask(ctx, client, request, nil)
			if err != nil {
				return err
			}
			// Before the client is closed, because that may fail and the secret is returned only once.
			return a.printResponse(*asJSON, added, func() error {
				_, err = fmt.Fprintf(a.stdout, "Webhook %s receives messages from now on.\n\nIts secret, which is not shown again:\n\n  %s\n", added.ID, added.Secret)
				return err
			})
		})
	}))
}

// newWebhookList returns the command `larder webhook list`, which lists the webhooks, oldest first, and how their messages
// fare.
func newWebhookList(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the webhooks, and how their messages fare",
		Long:  "List the webhooks, oldest first: what is pending, how the last attempt went, what failed." + askedWhom,
		Example: `  larder webhook list
  larder webhook list --json`,
	}
	a.addFlags(cmd, dataFlags)
	return setReadAction(a, cmd, nil, app.OpWebhookList, func([]string) (none struct{}, err error) { return none, nil }, func(hooks []notify.Webhook) error {
		if len(hooks) == 0 {
			_, err := fmt.Fprintln(a.stdout, "There is no webhook; `larder webhook add URL` adds one.")
			return err
		}
		table := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tURL\tABOUT\tDELIVERED\tPENDING\tGIVEN UP\tLAST ATTEMPT")
		for _, h := range hooks {
			last := describeLastAttempt(h.Last, h.Answer, h.Problem, formatCount(int(h.Failures), "failure", "failures")+" since the last success")
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", h.ID, text.Plain(h.URL), text.Plain(h.About()), h.Delivered, h.Pending, h.GivenUp, last)
		}
		return table.Flush()
	})
}

// newWebhookRemove returns the command `larder webhook remove`, which removes the webhook with an id and its pending messages.
func newWebhookRemove(a *cli) *cobra.Command {
	return setRemoveAction(a, &cobra.Command{
		Use:     "remove ID",
		Short:   "End a webhook",
		Long:    "End a webhook. What is on its way may still arrive; what is pending is dropped." + sentLater,
		Example: `  larder webhook remove 3f9c2a7be01d4c58`,
	}, app.OpWebhookRemove, "Webhook %s is removed.\n")
}
