package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot/schedule"
	"github.com/larder-cdn/larder/bot/webhook"
)

// What `larder webhook` asks.
type (
	webhookAddRequest struct {
		URL     string `json:"url"`
		Package string `json:"package,omitempty"` // "" for all
	}
	webhookListRequest   struct{}
	webhookRemoveRequest struct {
		ID string `json:"id"`
	}
)

// webhookAdded is what is told of a new webhook, and its JSON form.
type webhookAdded struct {
	webhook.Hook
	Secret string `json:"secret"`
}

// webhookOperations are the operations about webhooks.
func (f *folder) webhookOperations() map[string]admin.Operation {
	return map[string]admin.Operation{
		"webhook-add": admin.Typed(func(ctx context.Context, r webhookAddRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			hook, secret, err := e.webhooks.Add(ctx, r.URL, r.Package)
			return webhookAdded{hook, secret}, err
		}),
		"webhook-list": admin.Typed(func(ctx context.Context, _ webhookListRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return e.webhooks.List(ctx)
		}),
		"webhook-remove": admin.Typed(func(ctx context.Context, r webhookRemoveRequest, _ func(any)) (any, error) {
			e, err := f.errands()
			if err != nil {
				return nil, err
			}
			return nil, e.webhooks.Remove(ctx, r.ID)
		}),
	}
}

func newWebhook(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Tell other services when a release is published",
		Long: `Tell other services over HTTP when a release is published. docs/webhooks.md has what they get, how they verify it, and
when it is tried again.`,
		Example: `  larder webhook add https://ci.example.com/hooks/larder
  larder webhook list`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWebhookAdd(a), newWebhookList(a), newWebhookRemove(a))
	return cmd
}

const webhookReach = `

It speaks to the larder process that runs on the data folder; where none runs, it works alone, and messages are sent
when one does.`

func newWebhookAdd(a *app) *cobra.Command {
	var request webhookAddRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Send a message to a URL for each release that is published from now on",
		Long: `Send a signed message to a URL for each release that is published from now on. The secret that its receiver verifies
messages with is told here, once. The URL may be on any host, this one too; whoever can run this command could call it
anyway.` + webhookReach,
		Example: `  larder webhook add https://ci.example.com/hooks/larder
  larder webhook add http://127.0.0.1:9000/rebuild --package jquery`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().StringVar(&request.Package, "package", "", "only releases of the package `NAME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request.URL = args[0]
		if err := schedule.CheckURL(request.URL); err != nil {
			return usageError{err}
		}
		return a.reach(ctx, nil, a.openForWork, func(client *admin.Client) error {
			added, err := admin.Call[webhookAdded, any](ctx, client, "webhook-add", request, nil)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(a.stdout, added)
			}
			_, err = fmt.Fprintf(a.stdout, "Webhook %s is told of what is published from now on.\n\nIts secret, which is not told again:\n\n  %s\n", added.ID, added.Secret)
			return err
		})
	})
	return cmd
}

func newWebhookList(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the webhooks, and how their messages fare",
		Long:  "List the webhooks, oldest first: what is pending, how the last attempt went, what failed." + askedWhom,
		Example: `  larder webhook list
  larder webhook list --json`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			hooks, err := admin.Call[[]webhook.Hook, any](ctx, client, "webhook-list", webhookListRequest{}, nil)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(a.stdout, hooks)
			}
			return printWebhooks(a.stdout, hooks)
		})
	})
	return cmd
}

func printWebhooks(w io.Writer, hooks []webhook.Hook) error {
	if len(hooks) == 0 {
		_, err := fmt.Fprintln(w, "There is no webhook; `larder webhook add URL` adds one.")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tURL\tPACKAGE\tDELIVERED\tPENDING\tGIVEN UP\tLAST ATTEMPT")
	for _, h := range hooks {
		pkg, last := h.Package, "none"
		if pkg == "" {
			pkg = "all"
		}
		if !h.Last.IsZero() {
			last = humanize.Time(h.Last) + ": "
			if h.Problem == "" {
				last += fmt.Sprint(h.Answer)
			} else {
				last += plain(h.Problem) + fmt.Sprintf(" (%s since the last success)", count(int(h.Failures), "failure", "failures"))
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", h.ID, plain(h.URL), plain(pkg), h.Delivered, h.Pending, h.GivenUp, last)
	}
	return table.Flush()
}

func newWebhookRemove(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remove ID",
		Short:   "End a webhook",
		Long:    "End a webhook. What is on its way may still arrive; what is pending is dropped." + webhookReach,
		Example: `  larder webhook remove 3f9c2a7be01d4c58`,
		Args:    arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		return a.reach(ctx, nil, a.openExisting, func(client *admin.Client) error {
			_, err := admin.Call[any, any](ctx, client, "webhook-remove", webhookRemoveRequest{args[0]}, nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "Webhook %s is removed.\n", args[0])
			return err
		})
	})
	return cmd
}
