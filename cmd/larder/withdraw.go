package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
)

const speaksTo = `

It speaks to the larder process that runs on the data folder; where none runs, it works alone, and signs the log if its
key is there.`

// releaseFlags are the flags of a withdrawal that apply only if no process runs on the data folder.
var releaseFlags = append([]string{"keys"}, assetFlags...)

// newWithdraw returns the command `larder withdraw`, which withdraws a release and, with --erase, removes its files for good.
// With --undo it restores a withdrawn release.
func newWithdraw(a *cli) *cobra.Command {
	var request app.WithdrawRequest
	var yes, undo bool
	var override string
	cmd := &cobra.Command{
		Use:   "withdraw NAME VERSION --reason TEXT",
		Short: "Stop serving a release",
		Long: `Stop serving a release at once: its files, archives, pages and the API answer 410 with the reason, lists and search
leave it out, and the bot never publishes it again. The files are kept, for evidence and for --undo.

Copies that browsers and caches elsewhere hold already cannot be recalled: files are published to be kept for a year.
A cache in front of Larder can be purged by the tag that is printed, or by --purge-hook.

With --erase the files are removed for good, but for those that another release has too. That cannot be undone. A
release that is withdrawn already can be erased later.

--undo serves a withdrawn release again exactly as it was, unless its files were erased. A release that was published
without the attestation that its package JSON requires by now also needs --without-provenance.` + speaksTo,
		Example: `  larder withdraw left-pad 1.3.1 --reason "published with a stolen token, see https://example.com/advisory"
  larder withdraw left-pad 1.3.1 --reason "court order 12/34" --erase
  larder withdraw left-pad 1.3.1 --undo --reason "the owner confirms that it is theirs"`,
		Args:       checkArgumentCount(2, 2),
		SuggestFor: []string{"restore", "remove"},
	}
	a.addFlags(cmd, dataFlags, releaseFlags)
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, in a sentence, `TEXT`; every client that requests the release gets it")
	cmd.Flags().BoolVar(&request.Erase, "erase", false, "remove its files for good too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before erasing")
	cmd.Flags().BoolVar(&undo, "undo", false, "serve the withdrawn release again")
	cmd.Flags().StringVar(&override, "without-provenance", "", "with --undo: "+unattestedFlag)
	cmd.MarkFlagsMutuallyExclusive("undo", "erase")
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		request.Package, request.Version = args[0], args[1]
		if strings.TrimSpace(request.Reason) == "" {
			return settings.Mistakef("say why with --reason TEXT: the log has it, and clients that request the release get it")
		}
		if override != "" && !undo {
			return settings.Mistakef("--without-provenance is for --undo")
		}
		if undo {
			return runReleaseOperation(ctx, a, app.OpRestore, app.RestoreRequest{Package: args[0], Version: args[1], Reason: request.Reason, Override: override}, *asJSON, printRestored)
		}
		if request.Erase && !yes {
			if err := confirmErasing(ctx, os.Stdin, a.stderr, request.Package, request.Version); err != nil {
				return err
			}
		}
		return runReleaseOperation(ctx, a, app.OpWithdraw, request, *asJSON, printWithdrawn)
	}))
}

// runReleaseOperation runs the operation o, a withdrawal or restoration, in the process that has the data folder open or in
// this one. It prints the result with print, or as JSON, and warns if the log is not signed. It also returns an error if files
// could not be erased yet; the release is withdrawn then.
func runReleaseOperation[Request any](ctx context.Context, a *cli, o app.Operation[Request, any, *app.Withdrawn], request Request, asJSON bool, print func(*app.Withdrawn, io.Writer) error) error {
	open := a.openForWriting(app.WriterOptions{Existing: true, Signing: app.SignedIfKey})
	return a.withClient(ctx, releaseFlags, open, func(client *app.Client) error {
		defer a.warnUnsigned(ctx, client)
		answer, err := o.Ask(ctx, client, request, nil)
		if err != nil {
			return err
		}
		err = a.printResponse(asJSON, answer, func() error { return print(answer, a.stdout) })
		if e := answer.Erasure; err == nil && e != nil && e.Busy > 0 {
			pronoun := "them"
			if e.Busy == 1 {
				pronoun = "it"
			}
			err = fmt.Errorf("%s not erased, because a release that is being published may need %s; run the same again when that is done",
				formatCount(e.Busy, "file content was", "file contents were"), pronoun)
		}
		return err
	})
}

// confirmErasing asks at the terminal in, with a question on out, for the version of the release, and returns nil if the line
// is that. It returns an error if the line differs or ctx ends, and a [settings.Mistake] if in is no terminal. After the end of
// ctx, a goroutine still reads from in.
func confirmErasing(ctx context.Context, in *os.File, out io.Writer, name, version string) error {
	if !term.IsTerminal(int(in.Fd())) {
		return settings.Mistakef("--erase cannot be undone; where no person can be asked, add --yes")
	}
	fmt.Fprintf(out, "The files of %s %s will be removed for good; it cannot be restored afterwards.\nType its version to go on: ", name, version)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // a line that cannot be read is no answer
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

// printWithdrawn prints for people the result of a withdrawal, of an erasure, or of both. After an erasure it ignores errors of
// writing.
func printWithdrawn(a *app.Withdrawn, w io.Writer) error {
	if r := a.Release; r != nil {
		fmt.Fprintf(w, "%s %s is withdrawn (log entry %d): %s\n", r.Package, r.Version, r.Entry, text.Plain(r.Reason))
		fmt.Fprintf(w, "%s under %s, its archives and the API now answer 410.\n", formatCount(len(r.Files), "URL", "URLs"), a.Prefix)
		fmt.Fprintf(w, "\nCopies that browsers and other caches hold already cannot be recalled: they may keep them for a year.\n")
		switch a.Hook {
		case app.HookCalled:
			fmt.Fprintln(w, "The purge hook is being called; `larder status` shows failures.")
		case app.HookLater:
			fmt.Fprintln(w, "The purge hook will be called when a larder process serves from this folder.")
		default:
			fmt.Fprintf(w, "In a cache in front, purge the tag %s, or everything under that prefix.\n", a.Tag)
		}
	}
	if e := a.Erasure; e != nil {
		switch {
		case e.Erased > 0:
			fmt.Fprintf(w, "Erased for good (log entry %d): %s, %s. Backups may still have them.\n", e.Entry, formatCount(e.Erased, "file content", "file contents"), humanize.Bytes(uint64(e.Bytes)))
		case e.Busy == 0:
			fmt.Fprintln(w, "There was nothing to erase that only this release has.")
		}
		if e.Shared > 0 {
			fmt.Fprintf(w, "Kept, because others need them too (%s): %s.\n", strings.Join(e.With, ", "), formatCount(e.Shared, "file content", "file contents"))
		}
		return nil
	}
	_, err := fmt.Fprintf(w, "Its files are kept; `larder withdraw --undo %s %s --reason TEXT` serves it again as it was.\n", a.Release.Package, a.Release.Version)
	return err
}

// printRestored prints for people the result of the restoration of a withdrawn release, a.Release.
func printRestored(a *app.Withdrawn, w io.Writer) error {
	r := a.Release
	_, err := fmt.Fprintf(w, "%s %s is served again as it was (log entry %d): %s under %s\n", r.Package, r.Version, r.Entry, formatCount(len(r.Files), "URL", "URLs"), a.Prefix)
	return err
}
