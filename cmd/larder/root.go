package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/lint"
)

// cli is what every command gets: the settings, which [cli.withSettings] loads, and the environment and output of the process.
// intervals are those of a cluster node.
type cli struct {
	settings  *settings.Settings
	environ   []string
	stdout    io.Writer
	stderr    io.Writer
	intervals app.ClusterIntervals
}

// newCLI returns the environment of the commands, with settings that are not loaded yet. environ is that of the process, as
// NAME=VALUE.
func newCLI(environ []string, stdout, stderr io.Writer) *cli {
	return &cli{settings: settings.New(), environ: environ, stdout: stdout, stderr: stderr}
}

// failure is an error of the work of a command: the exit code is exitFailed. An error that is neither a failure nor a [verdict]
// is a usage error.
type failure struct{ error }

// Unwrap returns the error of the work.
func (f failure) Unwrap() error { return f.error }

// A verdict is an error of the work of a command with an exit code of its own, also if a [failure] wraps it.
type verdict struct {
	error
	code int
}

// run executes one command line, args without the program's name. It prints an error to a.stderr, with "larder: " before each
// line. It returns exitDone, the code of a [verdict], exitFailed for a [failure], or exitUsage for any other error, after which
// it also prints how to get help. The commands end early if ctx ends.
func (a *cli) run(ctx context.Context, args []string) int {
	stderr := a.stderr
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		// Errors name files, as strangers have called them.
		fmt.Fprintf(stderr, "larder: %s\n", lint.Plain(line))
	}
	if v := (verdict{}); errors.As(err, &v) {
		return v.code
	}
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	fmt.Fprintf(stderr, "Run `%s --help` for how to use it.\n", cmd.CommandPath())
	return exitUsage
}

// init has the help list commands in the order in which they are added, for all commands of the process.
func init() {
	cobra.EnableCommandSorting = false // they are in the order in which people come to need them
}

// newRoot returns the command `larder`, with all commands in their groups. It has no flags of settings: each command adds those
// that it takes. Commands refuse arguments unless they say which they take. Errors about unknown commands and flags suggest a
// similar one, or say where else a setting can be set.
func newRoot(a *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "larder",
		Short: "Serve front-end packages: fetched, compressed ahead of time, published atomically",
		Long: `Larder is a content delivery service for front-end packages, in one program. It fetches releases from an npm
registry, compresses every file ahead of time, publishes each release at once or not at all, and serves the files
under /ajax/libs/{package}/{version}/{file}. A site to browse them and the API that cdnjs has are on the same address.

Every setting is a flag, an environment variable (LARDER_ and the flag's name: LARDER_PRIVATE_LISTEN), or a line in a
YAML file given with --config; the first of these that is set counts.

Exit codes: 0 done, 1 failed, 2 a mistake in the command line or the configuration.`,
		Example: `  larder up                          # everything in one process, data in ./data
  larder search font awesome         # which libraries there are
  larder tag jquery                  # the tag that loads one in a page
  larder add htmx.org@2.0.4          # fetch one more release now
  larder status                      # what is here, what is stuck and why`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		Version:       app.ThisBuild().String(), // for --version, which people try first
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return root.Help()
		}
		return unknownCommand(root, args[0])
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 { // the flag is that of a command that does not exist
			return unknownCommand(cmd, cmd.Flags().Arg(0))
		}
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
			if f := a.settings.Flags.Lookup(unknown.GetSpecifiedName()); f != nil && cmd.Flags().Lookup("config") != nil {
				return fmt.Errorf("--%s is no flag of %s; set it as %s in the environment, or as %[1]s in the file of --config", f.Name, cmd.CommandPath(), settings.EnvName(f.Name))
			}
			var names []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
			if best, ok := text.Nearest("--"+unknown.GetSpecifiedName(), names); ok {
				return fmt.Errorf("%w; did you mean %s?", err, best)
			}
		}
		return err
	})
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"run", "Run it:", []*cobra.Command{newUp(a), newServe(a), newBot(a), newMirror(a), newWitness(a), newAudit(a)}},
		{"browse", "Find libraries and use them in a page:", []*cobra.Command{newSearch(a), newInfo(a), newTag(a), newVendor(a), newVerify(a)}},
		{"publish", "Publish releases, and withdraw them:", []*cobra.Command{newAdd(a), newImport(a), newWithdraw(a)}},
		{"submit", "Put packages into a catalogue:", []*cobra.Command{newNew(a), newLint(a), newShowFiles(a)}},
		{"keep", "Look after it:", []*cobra.Command{newStatus(a), newDoctor(a), newNodes(a), newRoom(a), newSqueeze(a), newFsck(a), newRepair(a), newBackup(a), newBundle(a), newLog(a), newKey(a), newWebhook(a), newSchedule(a), newReload(a), newUpgrade(a), newVersion(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.id
			root.AddCommand(c)
			if c.HasSubCommands() {
				c.Args = func(cmd *cobra.Command, args []string) error {
					if len(args) == 0 {
						return nil
					}
					return unknownCommand(cmd, args[0])
				}
			}
		}
	}
	root.SetHelpCommandGroupID("keep")
	refuseArguments(root)
	return root
}

// refuseArguments has each command below parent, at any depth, refuse arguments, unless its Args is set.
func refuseArguments(parent *cobra.Command) {
	for _, c := range parent.Commands() {
		if c.Args == nil {
			c.Args = checkArgumentCount(0, 0)
		}
		refuseArguments(c)
	}
}

// unknownCommand returns the error that parent has no subcommand called name. It suggests the most similar command below parent
// or the root, by name or by a word of SuggestFor, if one is similar enough.
func unknownCommand(parent *cobra.Command, name string) error {
	path := func(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") }
	command := name
	if parent.HasParent() {
		command = path(parent) + " " + name
	}
	var known []string
	meant := make(map[string]string)
	for _, c := range slices.Concat(parent.Commands(), parent.Root().Commands()) {
		for _, word := range append([]string{path(c)}, c.SuggestFor...) {
			if strings.Count(word, " ") == strings.Count(command, " ") {
				known = append(known, word)
				meant[word] = path(c)
			}
		}
	}
	if best, ok := text.Nearest(command, known); ok {
		return fmt.Errorf("unknown command %q; did you mean %s?", command, meant[best])
	}
	return fmt.Errorf("unknown command %q", command)
}

// addFlags adds the flags of the settings named in groups to a command, and returns the command. The help lists all its flags
// in the order in which they are added. A name of no setting panics.
func (a *cli) addFlags(cmd *cobra.Command, groups ...[]string) *cobra.Command {
	cmd.Flags().SortFlags = false
	for _, names := range groups {
		for _, name := range names {
			cmd.Flags().AddFlag(a.settings.Flags.Lookup(name))
		}
	}
	return cmd
}

// withSettings returns a command's action that loads the settings and then calls work, with errors as of [withoutSettings]. If
// the command has the flag --data, the key folder must not be in the data folder. A mistake in the settings is a
// [settings.Mistake], and work is not called.
func (a *cli) withSettings(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return withoutSettings(func(ctx context.Context, args []string) error {
			err := a.settings.Load(a.environ)
			if err == nil && cmd.Flags().Lookup("data") != nil {
				err = a.settings.CheckKeyFolder()
			}
			if err != nil {
				return settings.Mistake{Err: err}
			}
			return work(ctx, args)
		})(cmd, args)
	}
}

// withoutSettings returns a command's action that calls work with the context of the command. If that has ended, an error that
// wraps [context.Canceled] becomes "interrupted". An error of work then becomes a [failure], unless it is or wraps a
// [settings.Mistake].
func withoutSettings(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := work(cmd.Context(), args)
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			err = errors.New("interrupted")
		}
		if err != nil && !errors.As(err, new(settings.Mistake)) {
			return failure{err}
		}
		return err
	}
}

// withAction sets the action of a command, and returns the command.
func withAction(cmd *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
	cmd.RunE = run
	return cmd
}

// checkArgumentCount returns a function that returns an error unless a command has from least to most arguments. A most below 0
// is any number.
func checkArgumentCount(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		_, takes, _ := strings.Cut(cmd.Use, " ")
		if takes == "" {
			return fmt.Errorf("%s takes no arguments, but got %q", cmd.Name(), args)
		}
		return fmt.Errorf("%s takes %s, but got %d of them", cmd.Name(), takes, len(args))
	}
}

// addJSONFlag adds the flag --json to a command, and returns where its value is once the command line is parsed.
func addJSONFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON")
}

// printResponse prints answer to standard output as JSON if asJSON is set. Otherwise it calls text, which prints the response
// for people, and returns its error.
func (a *cli) printResponse(asJSON bool, answer any, text func() error) error {
	if asJSON {
		return printJSON(a.stdout, answer)
	}
	return text()
}

// printJSON writes v as indented JSON and a line break, without escapes for HTML.
func printJSON(w io.Writer, v any) error {
	encoder := newLineEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// newLineEncoder returns an encoder that writes each value to w as one line of JSON, without escapes for HTML.
func newLineEncoder(w io.Writer) *json.Encoder {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder
}

// newGroup returns a command that only has subcommands, commands in their order. Run without one, it prints its help. use,
// short, long and example are the fields of that name of the command.
func newGroup(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// setResponseAction has cmd call request with its arguments, and returns cmd. It prints the response with print or, with the flag
// --json that it adds, as JSON.
func setResponseAction[Response any](
	a *cli, cmd *cobra.Command, request func(ctx context.Context, args []string) (Response, error), print func(Response) error,
) *cobra.Command {
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		response, err := request(ctx, args)
		if err != nil {
			return err
		}
		return a.printResponse(*asJSON, response, func() error { return print(response) })
	}))
}
