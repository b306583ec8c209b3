package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot/withdrawal"
)

const speaksTo = `

It speaks to the larder process that runs on the data folder; where none runs, it works alone, and signs the log if its
key is there.`

// releaseFlags count where no process runs.
var releaseFlags = append([]string{"keys"}, assetFlags...)

func newWithdraw(a *app) *cobra.Command {
	var request withdrawRequest
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "withdraw NAME VERSION --reason TEXT",
		Short: "Stop serving a release",
		Long: `Stop serving a release at once: its files, archives, pages and the API answer 410 with the reason, lists and search
leave it out, and the bot never publishes it again. The files are kept, for evidence and for larder restore.

Copies that browsers and caches elsewhere hold already cannot be recalled: files are published to be kept for a year.
A cache in front of Larder can be purged by the tag that is told, or by --purge-hook.

With --erase the files are removed for good, but for those that another release has too. That cannot be undone. A
release that is withdrawn already can be erased later.` + speaksTo,
		Example: `  larder withdraw left-pad 1.3.1 --reason "published with a stolen token, see https://example.com/advisory"
  larder withdraw left-pad 1.3.1 --reason "court order 12/34" --erase`,
		Args: arguments(2, 2),
	}
	a.uses(cmd, dataFlags, releaseFlags)
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, in a sentence, `TEXT`; it is told to everybody who asks for the release")
	cmd.Flags().BoolVar(&request.Erase, "erase", false, "remove its files for good too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before erasing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request.Package, request.Version = args[0], args[1]
		if err := needReason(request.Reason); err != nil {
			return err
		}
		if request.Erase && !yes {
			if err := confirmErasing(ctx, os.Stdin, a.stderr, request.Package, request.Version); err != nil {
				return err
			}
		}
		return a.aboutRelease(ctx, "withdraw", request, asJSON, (*withdrawn).print)
	})
	return cmd
}

func newRestore(a *app) *cobra.Command {
	var request restoreRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "restore NAME VERSION --reason TEXT",
		Short: "Serve a withdrawn release again",
		Long: `Serve a release again that was withdrawn, exactly as it was: the same files under the same addresses, with the same
entity tags and integrities. A release whose files were erased cannot be restored.` + speaksTo,
		Example: `  larder restore left-pad 1.3.1 --reason "the owner confirms that it is theirs"`,
		Args:    arguments(2, 2),
	}
	a.uses(cmd, dataFlags, releaseFlags)
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, in a sentence, `TEXT`; it stands in the log")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request.Package, request.Version = args[0], args[1]
		if err := needReason(request.Reason); err != nil {
			return err
		}
		return a.aboutRelease(ctx, "restore", request, asJSON, (*withdrawn).printRestored)
	})
	return cmd
}

func needReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return usageError{errors.New("say why with --reason TEXT: it stands in the log, and whoever asks is told it")}
	}
	return nil
}

// aboutRelease has an operation done and prints what it came to.
func (a *app) aboutRelease(ctx context.Context, operation string, request any, asJSON bool, print func(*withdrawn, io.Writer) error) error {
	open := func(logger *slog.Logger) (*folder, error) {
		if err := a.settings.needStore(); err != nil {
			return nil, err
		}
		return a.openToAppend(logger)
	}
	return a.reach(ctx, releaseFlags, open, func(client *admin.Client) error {
		defer a.tellUnsigned(ctx, client)
		answer, err := admin.Call[withdrawn, any](ctx, client, operation, request, nil)
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(a.stdout, answer)
		} else {
			err = print(&answer, a.stdout)
		}
		if e := answer.Erasure; err == nil && e != nil && e.Busy > 0 {
			err = fmt.Errorf("%s not erased, because a release that is being published may need %s; run the same again when that is done",
				count(e.Busy, "file content was", "file contents were"), it(e.Busy))
		}
		return err
	})
}

func it(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// confirmErasing has whoever sits at the terminal say that they mean it.
func confirmErasing(ctx context.Context, in *os.File, out io.Writer, name, version string) error {
	if !term.IsTerminal(int(in.Fd())) {
		return usageError{errors.New("--erase cannot be undone; where nobody can be asked, add --yes")}
	}
	fmt.Fprintf(out, "The files of %s %s will be removed for good; it cannot be restored afterwards.\nType its version to go on: ", name, version)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // what cannot be read is no answer
		answer <- strings.TrimSpace(line)
	}()
	select {
	case line := <-answer:
		if line != version {
			return errors.New("that is not its version; nothing was done")
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// print tells a person what a withdrawal came to.
func (a *withdrawn) print(w io.Writer) error {
	if r := a.Release; r != nil {
		fmt.Fprintf(w, "%s %s is withdrawn (log entry %d): %s\n", r.Package, r.Version, r.Entry, plain(r.Reason))
		fmt.Fprintf(w, "%s under %s, its archives and the API now answer 410.\n", count(len(r.Files), "URL", "URLs"), a.Prefix)
		fmt.Fprintf(w, "\nCopies that browsers and other caches hold already cannot be recalled: they were told to keep them for a year.\n")
		switch a.Hook {
		case hookCalled:
			fmt.Fprintln(w, "The purge hook is being called; `larder status` tells if that fails.")
		case hookLater:
			fmt.Fprintln(w, "The purge hook will be called when a larder process serves from this folder.")
		default:
			fmt.Fprintf(w, "In a cache in front, purge the tag %s (see --cache-tags), or everything under that prefix.\n", a.Tag)
		}
	}
	if a.Erasure != nil {
		return printErasure(w, a.Erasure)
	}
	_, err := fmt.Fprintf(w, "Its files are kept; `larder restore %s %s --reason TEXT` serves it again as it was.\n", a.Release.Package, a.Release.Version)
	return err
}

// printRestored tells a person what a restoration came to.
func (a *withdrawn) printRestored(w io.Writer) error {
	r := a.Release
	_, err := fmt.Fprintf(w, "%s %s is served again as it was (log entry %d): %s under %s\n", r.Package, r.Version, r.Entry, count(len(r.Files), "URL", "URLs"), a.Prefix)
	return err
}

func printErasure(w io.Writer, e *withdrawal.Erasure) error {
	switch {
	case e.Erased > 0:
		fmt.Fprintf(w, "Erased for good (log entry %d): %s, %s. Backups may still have them.\n", e.Entry, count(e.Erased, "file content", "file contents"), humanize.Bytes(uint64(e.Bytes)))
	case e.Busy == 0:
		fmt.Fprintln(w, "There was nothing to erase that only this release has.")
	}
	if e.Shared > 0 {
		fmt.Fprintf(w, "Kept, because others need them too (%s): %s.\n", strings.Join(e.With, ", "), count(e.Shared, "file content", "file contents"))
	}
	return nil
}
