package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/archive"
)

// newImport returns the command `larder import`, which has a release published from local files, or all releases of a folder
// with --tree.
func newImport(a *cli) *cobra.Command {
	var tree ingest.Tree
	cmd := &cobra.Command{
		Use:   "import NAME VERSION SOURCE",
		Short: "Publish releases from local files",
		Long: `Publish a release from local files: SOURCE is a folder, a .tar.gz, .tgz, .tar or .zip archive, or a single file. The
same rules apply as to a release from upstream: the package has to be in the catalogue, its file map selects the files,
and a published version never changes.

The paths of the release are those in SOURCE, also if all files are below one folder. Only --npm, for an archive made
by npm pack, drops the first component of every path. Links and other files without bytes of their own, and paths that
differ only in case, are refused. If the package JSON requires provenance, --without-provenance has to say why an
imported release, which has no attestation of its build, is published.

With --tree, publish all releases of a folder that has them as a public service lays them out:
{package}/{version}/{file}. The file map does not apply, and no minified files are made. Of a package that the catalogue
does not have, nothing is published. What is published already with the same files is only counted, so an import that
was interrupted goes on when it is run again.

--released says when the releases were made. A published release keeps its date, so none is guessed: a release without
one is not published, and can be imported in another run with another --released. packument asks the package's npm
registry, mtime takes the time of the newest file, and a file is JSON: {"jquery": {"3.7.1": "2023-08-28T13:37:31Z"}}.

--sri names integrities that must hold, else the release is not published: a folder with a JSON object for each release,
{package}/{version}.json, from paths to integrities, or all in one file:
{"jquery": {"3.7.1": {"jquery.js": "sha512-…"}}}.

The command reads SOURCE and sends the list of its files to the larder process that runs on the data folder, then the
contents that are missing there. That process works with its own settings; a node of a cluster forwards to the leader.
If no process runs, the command publishes with its own settings, and signs the log if the key is there.`,
		Example: `  larder import my-library 1.0.0 ./dist
  larder import my-library 1.0.1 my-library.js
  larder import jquery 3.7.1 jquery-3.7.1.tgz --npm
  larder import --tree ./mirror/ajax/libs --sri ./SRIs`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if tree.Dir == "" {
			for _, name := range []string{"released", "sri", "json"} {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s counts with --tree DIR only", name)
				}
			}
			return checkArgumentCount(3, 3)(cmd, args)
		}
		if cmd.Flags().Changed("npm") {
			return fmt.Errorf("--npm is for a single archive, and not for --tree")
		}
		if len(args) > 0 {
			return fmt.Errorf("import takes --tree DIR or NAME VERSION SOURCE, but got both")
		}
		return nil
	}
	npm := cmd.Flags().Bool("npm", false, "drop the first component of every path, for an archive made by npm pack")
	cmd.Flags().StringVar(&tree.Dir, "tree", "", "publish all releases of `DIR`, {package}/{version}/{file}")
	cmd.Flags().StringVar(&tree.Released, "released", ingest.ByPackument, "`SOURCE` of release dates: packument, mtime, or a JSON file")
	cmd.Flags().StringVar(&tree.SRI, "sri", "", "`FILE` or folder of integrities that must hold")
	cmd.Flags().StringVar(&tree.Override, "without-provenance", "", unattestedFlag)
	asJSON := addJSONFlag(cmd)
	used := []string{"keys", "catalogue", "memory"}
	a.addFlags(cmd, dataFlags, used)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		if tree.Dir != "" {
			return a.importTree(ctx, used, tree, *asJSON)
		}
		source, err := openImport(args[2], *npm)
		if err != nil {
			return err
		}
		return a.withClient(ctx, used, a.openForWriting(appendingToLog), func(client *app.Client) error {
			defer a.warnUnsigned(ctx, client)
			return ingest.SendRelease(ctx, app.Importer(client, a.printEvent), args[0], args[1], tree.Override, source)
		})
	}))
}

// openImport opens the source of a release at path: a folder, an archive or a single file. If npm is set, it must be an archive,
// as npm pack makes one, and the source leaves out the first component of every path in it. The caller need not close the source.
func openImport(path string, npm bool) (archive.Source, error) {
	source, err := archive.OpenFile(path)
	switch info, statErr := os.Stat(path); {
	case statErr != nil:
		return source, fmt.Errorf("%w; SOURCE is a folder, an archive or a single file", statErr)
	case npm && (info.IsDir() || errors.Is(err, archive.ErrNotArchive)):
		return source, fmt.Errorf("%s is no archive; --npm is for an archive made by npm pack", path)
	case errors.Is(err, archive.ErrNotArchive):
		return archive.SingleFile(path), nil
	case npm:
		return source.StripRoot(), err
	}
	return source, err
}

// importTree has all releases of a folder published, for `larder import --tree`. It prints the releases that could not be
// imported and the summary, or both as JSON, and a progress bar on standard error. It returns an error if a release could not
// be imported. used are the names of the flags that apply only if no process runs.
func (a *cli) importTree(ctx context.Context, used []string, tree ingest.Tree, asJSON bool) error {
	paths := []*string{&tree.Dir, &tree.SRI}
	if tree.Released != ingest.ByPackument && tree.Released != ingest.ByTimes {
		paths = append(paths, &tree.Released)
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		_, err := os.Stat(*path)
		if err == nil {
			*path, err = filepath.Abs(*path) // the process that runs stands in another folder
		}
		if err != nil {
			return err
		}
	}
	return a.withClient(ctx, used, a.openForWriting(appendingToLog), func(client *app.Client) error {
		defer a.warnUnsigned(ctx, client)
		result := struct {
			ingest.TreeSummary
			Problems []ingest.TreeEvent `json:"problems"`
		}{Problems: []ingest.TreeEvent{}}
		bar := newCountBar(a.stderr, "importing", "releases")
		var err error
		begun := false
		result.TreeSummary, err = app.OpImportTree.Ask(ctx, client, tree, func(e ingest.TreeEvent) {
			begun = true
			bar.Show(int64(e.Done), int64(e.Of))
			if e.Problem != "" {
				result.Problems = append(result.Problems, e)
			}
		})
		bar.Close()
		if !asJSON || err != nil {
			for _, e := range result.Problems {
				fmt.Fprintln(a.stdout, text.Plain(fmt.Sprintf("%s: %s: %s", strings.TrimSpace(e.Package+" "+e.Version), e.Problem, e.Detail)))
			}
		}
		if err != nil && begun {
			err = fmt.Errorf("%w; what is published stays, and the same command goes on with the rest", err)
		}
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(a.stdout, result)
		} else {
			a.printTreeSummary(result.TreeSummary)
		}
		if n := len(result.Problems); n > 0 {
			err = errors.Join(err, fmt.Errorf("%s could not be imported", formatCount(n, "release", "releases")))
		}
		return err
	})
}

// printTreeSummary prints for people how many releases of a folder were imported, published before, refused and left out.
func (a *cli) printTreeSummary(s ingest.TreeSummary) {
	refused := 0
	for _, r := range s.Refused {
		refused += r.Count
	}
	fmt.Fprintf(a.stdout, "Imported %s of %s: %s, %s; %s published before with the same files, %s refused.\n",
		formatCount(s.Published, "release", "releases"), formatCount(s.Packages, "package", "packages"), formatCount(s.Files, "file", "files"),
		humanize.Bytes(uint64(s.Bytes)), humanize.Comma(int64(s.Same)), humanize.Comma(int64(refused)))
	tell := func(some ingest.Sample, what string) {
		if some.Count > 0 {
			fmt.Fprintln(a.stdout, text.Plain(fmt.Sprintf("%s: %d: %s", what, some.Count, some)))
		}
	}
	for _, r := range s.Refused {
		tell(r.Sample, "Refused, "+r.Problem)
	}
	tell(s.Unknown, "Not in the catalogue")
	tell(s.Beside, "Left out, as they are no folders")
	tell(s.LeftOut, "Files left out of releases")
	tell(s.Unlisted, "Without integrities in the list")
	tell(s.Missing, "In the list of integrities, not in the tree")
}
