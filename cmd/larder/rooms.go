package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/page"
)

// roomSettings say which waiting rooms there are.
type roomSettings struct {
	rooms  string
	inline []config.Room // of the configuration file, where they stand in it
}

func (s *roomSettings) addTo(f *pflag.FlagSet) {
	f.Var(textValue(&s.rooms, "file|off"), "rooms", "waiting rooms, as `FILE` (YAML) says, or off; in the configuration file the rooms themselves may stand here. Where it is not given, there is one over /download/ with generous limits")
}

// setRooms takes rooms that stand in the configuration file itself.
func (s *settings) setRooms(file, at string, list *yaml.Node) error {
	rooms, err := config.ParseNode(file, list)
	if err != nil {
		return err
	}
	s.inline = rooms
	s.origins["rooms"] = at
	return nil
}

// defaultRooms keep a crowd that downloads whole releases from taking the machine down; their limits are far
// above what anybody notices otherwise.
const defaultRooms = `
- name: downloads
  path: /download/
  total_active_users: 20000
  new_users_per_minute: 20000
  session_duration: 1
`

// configuredRooms reads the rooms.
func (s *settings) configuredRooms() ([]config.Room, error) {
	switch {
	case s.inline != nil:
		return s.inline, nil
	case s.rooms == off:
		return nil, nil
	case s.rooms == "":
		return config.Parse("the default rooms", []byte(defaultRooms))
	}
	text, err := os.ReadFile(s.rooms)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", s.origin("rooms"), err)}
	}
	rooms, err := config.Parse(s.rooms, text)
	if err != nil {
		return nil, usageError{err}
	}
	return rooms, nil
}

type roomsRequest struct {
	Room string `json:"room,omitempty"` // "" for all
}

// roomStatuses answers `larder room status`.
func (f *folder) roomStatuses(r roomsRequest) ([]waitingroom.Status, error) {
	if f.rooms == nil {
		return nil, errors.New("no larder process serves waiting rooms on this data folder; `larder up` and `larder serve` do")
	}
	if r.Room == "" {
		return f.rooms.Statuses(), nil
	}
	status, ok := f.rooms.Status(r.Room)
	if !ok {
		return nil, fmt.Errorf("there is no waiting room %q; `larder room status` lists those that there are", r.Room)
	}
	return []waitingroom.Status{status}, nil
}

func newRoomStatus(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [ROOM]",
		Short: "Tell how full the waiting rooms are",
		Long: `Tell how many users are in each waiting room of the running process, how many wait, and for how long at most. The
page /rooms shows the same, with what happened in the last hour.`,
		Example: `  larder room status
  larder room status --json shop | jq '.[0].estimated_queued_users'`,
		Args: arguments(0, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request := roomsRequest{}
		if len(args) == 1 {
			request.Room = args[0]
		}
		statuses, err := look[[]waitingroom.Status](ctx, a, "rooms", request)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(a.stdout, statuses)
		}
		return printRooms(a.stdout, statuses)
	})
	return cmd
}

func printRooms(w io.Writer, statuses []waitingroom.Status) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ROOM\tSTATUS\tIN\tOF\tWAITING\tLONGEST WAIT\tCOVERS")
	for _, s := range statuses {
		status := strings.ReplaceAll(s.Status, "_", " ")
		if s.EventID != "" {
			status += " (" + s.EventID + ")"
		}
		if s.Recovering {
			status += ", recovering"
		}
		wait := "-"
		if s.MaxMinutes > 0 {
			wait = fmt.Sprintf("%d min", s.MaxMinutes)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, status, s.Active, s.TotalActiveUsers, s.Queued, wait, strings.Join(s.Routes, ", "))
	}
	return table.Flush()
}

func newRoomPreview(a *app) *cobra.Command {
	method, tag := string(config.FIFO), "en-US"
	var full, event bool
	cmd := &cobra.Command{
		Use:   "preview [TEMPLATE]",
		Short: "Print the page of who waits, before anybody sees it",
		Long: `Print the page that users of a waiting room see, made from a Mustache template with values as they could be, or the
built-in page where no template is given. What a template may name is in docs/waiting-room.md.`,
		Example: `  larder room preview > page.html
  larder room preview --language ar > page.html
  larder room preview --method random page.mustache > page.html`,
		Args: arguments(0, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(choiceValue(&method, string(config.FIFO), string(config.Random), string(config.Reject)), "method", "queueing method of the room")
	f.StringVar(&tag, "language", tag, "`LANGUAGE` of the room")
	f.BoolVar(&full, "queue-all", false, "as where nobody is let in")
	f.BoolVar(&event, "event", false, "as before an event that begins in half an hour")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		wanted, err := language.Parse(tag)
		if err != nil {
			return fmt.Errorf("--language %q must be a language such as en-US or de-DE", tag)
		}
		text := ""
		if len(args) == 1 {
			if text, err = readTemplate(args[0]); err != nil {
				return failure{err}
			}
		}
		now := time.Now()
		state := page.State{
			Method: config.Method(method), QueueAll: full, WaitKnown: method != string(config.Reject), Wait: 10 * time.Minute,
			Percentiles: [...]time.Duration{5 * time.Minute, 10 * time.Minute, 15 * time.Minute},
			LastUpdated: now, RefreshInterval: 20 * time.Second, Now: now,
		}
		if event {
			state.Phase, state.Event = config.Prequeueing, &config.Event{Start: now.Add(30 * time.Minute), End: now.Add(2 * time.Hour), Shuffle: true}
		}
		made, err := new(page.Renderer).Render(&state, text, "", wanted)
		if err != nil {
			return failure{err}
		}
		_, err = a.stdout.Write(made.HTML)
		return err
	}
	return cmd
}

func readTemplate(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, config.MaxTemplate+1))
	if err != nil {
		return "", err
	}
	if problem := config.CheckTemplate(string(text)); problem != "" {
		return "", fmt.Errorf("%s %s", file, problem)
	}
	return string(text), nil
}

// roomOperations are those of commands about waiting rooms.
func (f *folder) roomOperations() map[string]admin.Operation {
	return map[string]admin.Operation{
		"rooms": admin.Typed(func(_ context.Context, r roomsRequest, _ func(any)) (any, error) { return f.roomStatuses(r) }),
	}
}

// checkRooms finds the mistakes in the rooms before anything else has happened.
func (s *settings) checkRooms() error {
	_, err := s.configuredRooms()
	return err
}
