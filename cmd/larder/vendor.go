package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/packages"
)

// newVendor returns the command `larder vendor`, which has HTML files load scripts and style sheets from here instead of public
// CDNs. It has missing releases fetched. It prints the change of the files or, with --write, makes it.
func newVendor(a *cli) *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use:   "vendor PAGE...",
		Short: "Have pages load their scripts and style sheets from here instead of public CDNs",
		Long: `Find in HTML files the tags that load scripts and style sheets from cdnjs, jsDelivr (npm packages), unpkg,
code.jquery.com and Google's Hosted Libraries. Fetch the exact releases that are missing here, as ` + "`larder add`" + `
does, and print the change: each tag gets the address of the same file here, its integrity and crossorigin. No other
byte of a page changes. With --write, change the files.

A tag whose stated integrity is not that of the published file is an error, and stays as it is. So does a tag that names
no exact version, or a file or package that cannot be had here. The exit code is then 1, and other tags still change.
Other mentions of these CDNs are listed: in scripts, style sheets, import maps, comments and policies. They stay too.

The larder process that runs on the data folder fetches the releases; if none runs, the command does.` + whichAddress,
		Example: `  larder vendor index.html
  larder vendor --write site/*.html`,
		Args:       checkArgumentCount(1, -1),
		SuggestFor: []string{"rewrite", "localize", "migrate"},
	}
	used := slices.Concat([]string{"keys"}, botFlags, assetFlags)
	a.addFlags(cmd, dataFlags, used)
	cmd.Flags().BoolVar(&write, "write", false, "change the files instead of printing the change")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		var pages []*vendoredPage
		var failures []error
		for _, path := range args {
			p, err := readVendoredPage(path)
			if err != nil { // one that fails does not stop the others
				failures = append(failures, err)
				continue
			}
			pages = append(pages, p)
		}
		if len(pages) == 0 {
			return errors.Join(failures...)
		}
		err := a.withClient(ctx, used, a.openForWriting(appendingToLog), func(client *app.Client) error {
			defer a.warnUnsigned(ctx, client)
			return a.locateTags(ctx, client, pages)
		})
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
		for _, p := range pages {
			failures = append(failures, a.finishPage(p, write))
		}
		return errors.Join(failures...)
	}))
}

// A vendoredPage is an HTML file as it was read, with its tags that load files from public CDNs, in the order of the page.
type vendoredPage struct {
	path string
	data []byte
	tags []vendoredTag
}

// A vendoredTag is a tag that loads a file from a public CDN. located says where that file is published here, once
// [cli.locateTags] has found out.
type vendoredTag struct {
	verify.PageTag
	file    library.CDNFile
	located library.Located
}

// readVendoredPage reads an HTML file and finds the tags that load scripts and style sheets from public CDNs. It does not
// locate them here. A page over [verify.MaxPage] bytes, or in which tags cannot be found, is an error.
func readVendoredPage(path string) (*vendoredPage, error) {
	data, err := disk.ReadAtMost(path, verify.MaxPage)
	if err != nil {
		return nil, err
	}
	p := &vendoredPage{path: path, data: data}
	tags, err := verify.ReadPageTags(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, t := range tags {
		if address, ok := packages.ParseCDNAddress(t.URL); ok {
			p.tags = append(p.tags, vendoredTag{PageTag: t, file: library.CDNFile{CDNAddress: address, Integrity: t.Integrity}})
		}
	}
	return p, nil
}

// locateTags finds out where the files of the pages' tags are published here, and sets that in the tags. It has the process of
// client fetch the releases that are missing, and prints the progress to standard error. A release that cannot be fetched is a
// problem of its tags, not an error. The error is that of a request for locations, or of ctx.
func (a *cli) locateTags(ctx context.Context, client *app.Client, pages []*vendoredPage) error {
	var tags []*vendoredTag
	for _, p := range pages {
		for i := range p.tags {
			tags = append(tags, &p.tags[i])
		}
	}
	if err := locateFiles(ctx, client, tags); err != nil {
		return err
	}
	failures := map[string]error{} // by release
	for _, t := range tags {
		release := t.file.String()
		if _, tried := failures[release]; !t.located.Missing || tried {
			continue
		}
		request := app.AddRequest{Package: cmp.Or(t.file.Library, t.file.NPM), NPM: cmp.Or(t.file.NPM, t.file.Library), Version: t.file.Version}
		_, failures[release] = app.OpAdd.Ask(ctx, client, request, func(e sources.Event) {
			if line := describeEvent(e); line != "" {
				fmt.Fprintln(a.stderr, line) // the change alone is on stdout
			}
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if len(failures) == 0 {
		return nil
	}
	if err := locateFiles(ctx, client, tags); err != nil {
		return err
	}
	for _, t := range tags {
		if t.located.Missing {
			t.located.Problem = "its release is not here"
			if err := failures[t.file.String()]; err != nil {
				t.located.Problem = err.Error()
			}
		}
	}
	return nil
}

// locateFiles asks the process of client where the files of the tags are published here, and sets that in the tags; after an
// error they are as before. It requests each file once, because pages of a site load the same files, and sends several
// requests, because the number of files of a request is limited.
func locateFiles(ctx context.Context, client *app.Client, tags []*vendoredTag) error {
	const most = 500 // a request has a time limit too
	var files []library.CDNFile
	located := map[library.CDNFile]library.Located{}
	for _, t := range tags {
		if _, ok := located[t.file]; !ok {
			located[t.file] = library.Located{}
			files = append(files, t.file)
		}
	}
	for part := range slices.Chunk(files, most) {
		answers, err := app.OpLocate.Ask(ctx, client, library.LocateRequest{Files: part}, nil)
		if err == nil && len(answers) != len(part) {
			err = fmt.Errorf("the larder process located %d of %d files; it may be of another version", len(answers), len(part))
		}
		if err != nil {
			return err
		}
		for i, f := range part {
			located[f] = answers[i]
		}
	}
	for _, t := range tags {
		t.located = located[t.file]
	}
	return nil
}

// finishPage changes the tags of a page that were located: with write in the file, else it prints the difference. It lists on
// standard error the changed tags that stated no integrity, and where else the page names public CDNs. The error names each tag
// that stays as it is; the others are changed nevertheless.
func (a *cli) finishPage(p *vendoredPage, write bool) error {
	var changes []verify.TagChange
	var failures []error
	fail := func(t verify.PageTag, problem string) {
		failures = append(failures, fmt.Errorf("%s:%d: %s: %s", p.path, t.Line, text.Short(text.Plain(t.Text), 200), text.Plain(problem)))
	}
	for _, t := range p.tags {
		if t.located.Problem != "" {
			fail(t.PageTag, t.located.Problem)
			continue
		}
		changes = append(changes, verify.TagChange{Tag: t.PageTag, URL: t.located.URL, Integrity: t.located.Integrity})
	}
	changed, err := verify.ReplaceTags(p.data, changes)
	for bad := (*verify.TagError)(nil); errors.As(err, &bad); changed, err = verify.ReplaceTags(p.data, changes) {
		fail(changes[bad.Change].Tag, "it cannot be changed without changing what surrounds it")
		changes = slices.Delete(changes, bad.Change, bad.Change+1)
	}
	if err != nil {
		return errors.Join(append(failures, fmt.Errorf("%s: %w", p.path, err))...)
	}
	for _, c := range changes {
		if len(logs.StrongestHashes(c.Tag.Integrity)) == 0 {
			fmt.Fprintf(a.stderr, "larder: %s:%d: the tag states no integrity, so the file here was not compared with the one that the page had\n", p.path, c.Tag.Line)
		}
	}
	for _, m := range p.findMentions() {
		fmt.Fprintf(a.stderr, "larder: %s:%d: stays: %s\n", p.path, m.line, text.Short(text.Plain(m.url), 200))
	}
	switch {
	case !write:
		err = a.printDiff(diff.Diff(p.path, p.data, p.path, changed))
	case len(changes) > 0:
		if err = replaceFile(p.path, p.data, changed); err == nil {
			_, err = fmt.Fprintf(a.stdout, "%s: changed %s.\n", p.path, formatCount(len(changes), "tag", "tags"))
		}
	case len(p.tags) == 0:
		_, err = fmt.Fprintf(a.stdout, "%s: no tag loads a file from a public CDN.\n", p.path)
	}
	return errors.Join(append(failures, err)...)
}

// printDiff prints a difference in the unified format to standard output. On a terminal it leaves out the control characters
// that a page may have.
func (a *cli) printDiff(difference []byte) error {
	if terminalWidth(a.stdout) > 0 {
		difference = []byte(plainLines(string(difference), ""))
	}
	_, err := a.stdout.Write(difference)
	return err
}

// replaceFile replaces the content of a file by after, with the same permissions. If its content is no longer before, it
// returns an error and leaves the file as it is. Of a symbolic link it replaces the file to which the link leads.
func replaceFile(path string, before, after []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(now, before) {
		err = fmt.Errorf("couldn't write %s: it has changed meanwhile; run the command again", path)
	}
	if err != nil {
		return err
	}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	return disk.Replace(path, after, info.Mode().Perm())
}

// A mention is a URL of a public CDN in a page, and its line, counted from 1.
type mention struct {
	line int
	url  string
}

// findMentions returns the URLs of public CDNs in the page, in its order, except those inside p.tags.
func (p *vendoredPage) findMentions() (found []mention) {
	line, counted := 1, 0
	tags := p.tags // in the order of the page, as the URLs are; those that end before the URL are removed
	for _, span := range packages.CDNURL.Get().FindAllIndex(p.data, -1) {
		line += bytes.Count(p.data[counted:span[0]], []byte("\n"))
		counted = span[0]
		for len(tags) > 0 && tags[0].End() <= span[0] {
			tags = tags[1:]
		}
		if len(tags) == 0 || span[0] < tags[0].Start() || tags[0].End() < span[1] {
			found = append(found, mention{line, string(p.data[span[0]:span[1]])})
		}
	}
	return found
}
