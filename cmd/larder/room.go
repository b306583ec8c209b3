package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// newRoom returns the group of commands `larder room`, for waiting rooms. All but preview need a running process that serves
// waiting rooms; without one they return an error.
func newRoom(a *cli) *cobra.Command {
	return newGroup("room", "Look at and change waiting rooms",
		"Look at waiting rooms and change them. See docs/waiting-room.md.",
		"  larder room status",
		newRoomStatus(a), newRoomSet(a), newRoomApply(a), newRoomHistory(a), newRoomUndo(a), newRoomPreview(a))
}

// newRoomStatus returns the command `larder room status`, which prints a table of the waiting rooms of the running process, or
// of one of them, and the version of their settings.
func newRoomStatus(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [ROOM]",
		Short: "Show how full the waiting rooms are",
		Long: `Show how many users are in each waiting room of the running process, how many wait, and the longest wait. The page
/rooms on the private address shows the same, with charts of up to the last 30 days. On a node of a cluster these are
the users of all nodes; "recovering" says that the node which publishes has yet to hear from the others how many are
in, and "cut off" that it does not answer. Below is the version of the settings that is in force on this node, when and
by what it was made, and, where this node cannot find out whether it is the newest, since when.`,
		Example: `  larder room status
  larder room status --json shop | jq '.[0].estimated_queued_users'`,
		Args: checkArgumentCount(0, 1),
	}
	a.addFlags(cmd, dataFlags)
	return setReadAction(a, cmd, nil, app.OpRooms, func(args []string) (app.RoomsRequest, error) {
		return app.RoomsRequest{Room: strings.Join(args, "")}, nil
	}, func(statuses []waitingroom.Status) error {
		table := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "ROOM\tSTATUS\tIN\tOF\tWAITING\tLONGEST WAIT\tCOVERS")
		for _, s := range statuses {
			wait := "-"
			if s.MaxMinutes > 0 {
				wait = fmt.Sprintf("%d min", s.MaxMinutes)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", s.Name, describeRoom(s), s.Active, s.TotalActiveUsers, s.Queued, wait, strings.Join(s.Routes, ", "))
		}
		if err := table.Flush(); err != nil || len(statuses) == 0 {
			return err
		}
		return a.printRevision(statuses[0].Settings)
	})
}

// describeRoom returns the status of a room in words, with the id of the event that is on, in brackets, and what is wrong.
func describeRoom(s waitingroom.Status) string {
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
	if s.OriginDown {
		status += ", site down"
	}
	return status
}

// printRevision prints which version of the rooms' settings is in force, its problem, and since when it is not confirmed to be
// the newest.
func (a *cli) printRevision(v waitingroom.Revision) error {
	var err error
	if v.Version != 0 {
		_, err = fmt.Fprintf(a.stdout, "\nVersion %d of the settings, %s: %s\n", v.Version, formatVersionTime(v.Time), text.Plain(v.Origin))
	} else {
		_, err = fmt.Fprintf(a.stdout, "\nThe settings are no version yet: %s\n", text.Plain(v.Origin))
	}
	if err == nil && v.Problem != "" && !v.Unconfirmed {
		_, err = fmt.Fprintf(a.stdout, "Problem: %s\n", text.Plain(v.Problem))
	}
	if err == nil && v.Unconfirmed {
		since := "since the process started"
		if !v.Confirmed.IsZero() {
			since = "for " + time.Since(v.Confirmed).Round(time.Second).String()
		}
		_, err = fmt.Fprintf(a.stdout, "Not confirmed %s: %s\n", since, text.Plain(v.Problem))
	}
	return err
}

// formatVersionTime returns the time of a version of the rooms' settings in UTC, to the second.
func formatVersionTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// newRoomSet returns the command `larder room set`, which changes fields of a waiting room of the running process, all or none,
// as a new version of the rooms' settings. FIELD= without a value restores the value in the file of rooms.
func newRoomSet(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set ROOM FIELD=VALUE…",
		Short: "Change a waiting room at once",
		Long: `Change fields of a waiting room of the running process, all of them or none. Names and values are as in the file of
rooms. They count instead of the file's, also after a restart, until another file is applied; FIELD= without a value
goes back to the file's. All places and sessions stay. The change is the next version of the settings: larder room
history lists it, and larder room undo takes it back. In a cluster run it on any node; the others take it up within
seconds.`,
		Example: `  larder room set shop queue_all=true
  larder room set shop total_active_users=500 new_users_per_minute=100 queueing_method=random
  larder room set shop queue_all=`,
		Args: checkArgumentCount(2, 100),
	}
	a.addFlags(cmd, dataFlags)
	base := addBaseFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		request := app.SetRoomRequest{Room: args[0], Fields: map[string]string{}}
		for _, arg := range args[1:] {
			field, value, ok := strings.Cut(arg, "=")
			if !ok || field == "" {
				return settings.Mistakef("%q must be FIELD=VALUE, such as queue_all=true", arg)
			}
			request.Fields[field] = value
		}
		made, err := changeRooms(ctx, a, *base, func(base int64) (app.RoomVersion, error) {
			request.Base = base
			return runReadOperation(ctx, a, nil, app.OpSetRoom, request)
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "Room %s has %s from now on, with version %d of the settings.\n", text.Plain(args[0]), text.Plain(strings.Join(args[1:], ", ")), made.Number)
		return err
	}))
}

// addBaseFlag adds the flag --if-version to a command, and returns where its value is once the command line is parsed: the
// version of the rooms' settings that the command may change, 0 for the one in force when the command starts.
func addBaseFlag(cmd *cobra.Command) *int64 {
	return cmd.Flags().Int64("if-version", 0, "change nothing unless `VERSION` of the settings is in force; by default the one that is in force when the command starts")
}

// changeRooms calls change with the number of the version of the rooms' settings that it may change: base, or the version in
// force if base is 0. change has to fail if another version is in force by then. changeRooms returns the results of change, or
// the error of finding out the version. If no version is in force, change gets 0.
func changeRooms(ctx context.Context, a *cli, base int64, change func(base int64) (app.RoomVersion, error)) (made app.RoomVersion, err error) {
	if base == 0 {
		history, err := runReadOperation(ctx, a, nil, app.OpRoomHistory, app.RoomHistoryRequest{})
		if err != nil {
			return made, err
		}
		for _, v := range history.Versions {
			if v.InForce {
				base = v.Number
			}
		}
	}
	return change(base)
}

// newRoomApply returns the command `larder room apply`, which makes a file the settings of all waiting rooms of the running
// process, as a new version. A file that is in force already makes none.
func newRoomApply(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Have a file of rooms count at once",
		Long: `Have a file of rooms become the next version of the settings of all rooms, in place of the present ones and of what
larder room set has set. It counts at once, on all nodes of a cluster, and stays in force across restarts. Either all
of the file counts, or, where something is wrong, nothing: the message says in which line. All places and sessions
stay.`,
		Example: `  larder room apply rooms.yaml`,
		Args:    checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags)
	base := addBaseFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		file, err := readRooms(args[0])
		if err != nil {
			return err
		}
		before := int64(0)
		made, err := changeRooms(ctx, a, *base, func(base int64) (app.RoomVersion, error) {
			before = base
			return runReadOperation(ctx, a, nil, app.OpApplyRooms, app.ApplyRoomsRequest{Name: args[0], Text: file, Base: base})
		})
		if err != nil {
			return err
		}
		if made.Number == before {
			_, err = fmt.Fprintf(a.stdout, "%s is in force already, as version %d.\n", text.Plain(args[0]), made.Number)
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "%s is in force from now on, as version %d.\n", text.Plain(args[0]), made.Number)
		return err
	}))
}

// readRooms reads the file at the path name, with settings of waiting rooms, and does not check them. More than config.MaxFile
// bytes are an error.
func readRooms(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, config.MaxFile+1))
	if err == nil && len(data) > config.MaxFile {
		err = fmt.Errorf("%s has more than the %d bytes that rooms may take", name, config.MaxFile)
	}
	return data, err
}

// newRoomHistory returns the command `larder room history`, which lists the versions of the rooms' settings, newest first, or
// prints one as a file of rooms.
func newRoomHistory(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [VERSION]",
		Short: "List the versions of the rooms' settings, or print one",
		Long: `List the versions of the settings of all rooms, newest first: when each was made, and by what. With a VERSION, print
its settings as a file of rooms, for example to bring the file that --rooms names up to date. The last hundred versions
are kept.`,
		Example: `  larder room history
  larder room history 5 > rooms.yaml`,
		Args: checkArgumentCount(0, 1),
	}
	a.addFlags(cmd, dataFlags)
	var request app.RoomHistoryRequest
	return setReadAction(a, cmd, nil, app.OpRoomHistory, func(args []string) (_ app.RoomHistoryRequest, err error) {
		if len(args) == 1 {
			if request.Version, err = strconv.ParseInt(args[0], 10, 64); err != nil || request.Version < 1 {
				err = fmt.Errorf("%q must be the number of a version, such as 5; larder room history lists them", args[0])
			}
		}
		return request, err
	}, func(history app.RoomHistory) error {
		if request.Version != 0 {
			_, err := io.WriteString(a.stdout, history.File)
			return err
		}
		table := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "VERSION\tTIME\tCHANGED BY")
		for _, v := range history.Versions {
			origin := text.Plain(v.Origin)
			if v.Restores != 0 {
				origin += fmt.Sprintf(" (restores version %d)", v.Restores)
			}
			if v.InForce {
				origin += ", in force"
			}
			fmt.Fprintf(table, "%d\t%s\t%s\n", v.Number, formatVersionTime(v.Time), origin)
		}
		return table.Flush()
	})
}

// newRoomUndo returns the command `larder room undo`, which makes the settings of an older version, by default the one before,
// a new version of the rooms' settings.
func newRoomUndo(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undo",
		Short: "Take back the last change of the rooms' settings",
		Long: `Have the settings of all rooms be again what they were before the last change, as a new version. Another undo goes
back further. With --to they are those of any version that larder room history lists.`,
		Example: `  larder room undo
  larder room undo --to 3`,
	}
	a.addFlags(cmd, dataFlags)
	base := addBaseFlag(cmd)
	to := cmd.Flags().Int64("to", 0, "`VERSION` to restore; default: the one before")
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		made, err := changeRooms(ctx, a, *base, func(base int64) (app.RoomVersion, error) {
			return runReadOperation(ctx, a, nil, app.OpUndoRooms, app.UndoRoomsRequest{To: *to, Base: base})
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "Version %d is in force, with the settings of version %d.\n", made.Number, made.Restores)
		return err
	}))
}

// newRoomPreview returns the command `larder room preview`, which prints the HTML of the waiting page with example values, from
// a template or the built-in one. It asks no running process.
func newRoomPreview(a *cli) *cobra.Command {
	shown, tag := waitingroom.PagePreview{Method: "fifo"}, "en-US"
	cmd := &cobra.Command{
		Use:   "preview [TEMPLATE]",
		Short: "Print the page that waiting users see",
		Long: `Print the page that users of a waiting room see: your Mustache template with example values, or the built-in page
where no template is given. The names that a template may use are in docs/waiting-room.md.`,
		Example: `  larder room preview > page.html
  larder room preview --language ar > page.html
  larder room preview --method random page.mustache > page.html`,
		Args: checkArgumentCount(0, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(settings.ChoiceValue(&shown.Method, "fifo", "random", "reject"), "method", "queueing method of the room")
	f.StringVar(&tag, "language", tag, "`LANGUAGE` of the room")
	f.BoolVar(&shown.QueueAll, "queue-all", false, "as if no user were let in")
	f.BoolVar(&shown.Event, "event", false, "as if an event started in half an hour")
	return withAction(cmd, withoutSettings(func(_ context.Context, args []string) (err error) {
		if shown.Language, err = language.Parse(tag); err != nil {
			return settings.Mistakef("--language %q must be a language such as en-US or de-DE", tag)
		}
		if len(args) == 1 {
			shown.Template = args[0]
		}
		html, err := shown.HTML(time.Now())
		if err == nil {
			_, err = a.stdout.Write(html)
		}
		return err
	}))
}
