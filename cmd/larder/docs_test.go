package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/larder-cdn/larder/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the settings in docs/configuration.md")

const documentation = "../../docs/configuration.md"

// settingsTable returns the part of the documentation that is printed from the flags and the profiles.
func settingsTable() string {
	var b strings.Builder
	b.WriteString("| setting | default | meaning |\n| --- | --- | --- |\n")
	a := &cli{settings: settings.New()}
	up := newUp(a).Flags()
	a.settings.Flags.VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		value := f.DefValue
		if value != "" {
			value = "`" + value + "`"
		}
		mark := ""
		if up.Lookup(f.Name) == nil {
			mark = " *"
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", f.Name, mark, value, strings.ReplaceAll(usage, "|", "\\|"))
	})
	b.WriteString("\n\\* no flag of `up`, `serve`, `bot` and `mirror`: a line of the file, or a variable\n\n### Profiles\n\n| setting | `team` | `public` | `mirror` |\n| --- | --- | --- | --- |\n")
	a.settings.Flags.VisitAll(func(f *pflag.Flag) {
		values := [3]string{settings.Profiles["team"][f.Name], settings.Profiles["public"][f.Name], settings.Profiles["mirror"][f.Name]}
		if values != [3]string{} {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, values[0], values[1], values[2])
		}
	})
	return b.String()
}

func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- settings: [^\n]*-->\n).*(<!-- end of settings -->)`)
	if !part.Match(text) {
		t.Fatal("the documentation has lost the comments around its settings")
	}
	want := part.ReplaceAllString(string(text), "${1}\n"+strings.ReplaceAll(settingsTable(), "$", "$$")+"\n${2}")
	if *update {
		if err := os.WriteFile(documentation, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Errorf("docs/configuration.md does not list the settings as they are; run go test ./cmd/larder -run TestDocumentation -update")
	}
}

// TestHelp holds every command to what a person needs to work from its help.
func TestHelp(t *testing.T) {
	a := &cli{settings: settings.New()}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s says nothing", c.CommandPath(), f.Name)
			}
		})
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s lacks a summary or an example", c.CommandPath())
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len(line) > 120 {
				t.Errorf("%s: a line of the help is too long for a terminal: %s", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(a))
}

// TestHelpIsShort counts commands and the flags of larder up: of those that everybody needs, and of all.
func TestHelpIsShort(t *testing.T) {
	help := func(args ...string) string {
		var out bytes.Buffer
		if code := newCLI(nil, &out, &out).run(t.Context(), append([]string{}, args...)); code != exitDone {
			t.Fatalf("%q: exit code %d: %s", args, code, &out)
		}
		return out.String()
	}
	flags := regexp.MustCompile(`(?m)^ +(-\w, )?--`)
	if n := len(flags.FindAllString(help("up", "--help"), -1)); n > 20 {
		t.Errorf("larder up --help lists %d flags; want at most 20", n)
	}
	for _, command := range [][]string{{"up"}, {"serve"}, {"bot"}, {"mirror"}} {
		if n := len(flags.FindAllString(help(append(command, "--help-all")...), -1)); n > 45 || n < 15 {
			t.Errorf("larder %s --help-all lists %d flags; want at most 45", command[0], n)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^  [a-z-]+ {2,}\S`).FindAllString(help(), -1)); n > 34 || n < 20 {
		t.Errorf("larder --help lists %d commands; want at most 34", n)
	}
}

// TestMirrorServes holds larder mirror to the flags of larder serve, but for those about publishing and signing, which a mirror does not do.
func TestMirrorServes(t *testing.T) {
	publishes := []string{"catalogue", "releases", "memory", "allow-host", "log-origin", "bucket", "bucket-endpoint", "node-url", "backup", "backup-every"}
	a := &cli{settings: settings.New()}
	mirror := newMirror(a).Flags()
	newServe(a).Flags().VisitAll(func(f *pflag.Flag) {
		if has := mirror.Lookup(f.Name) != nil; has == slices.Contains(publishes, f.Name) {
			t.Errorf("--%s: larder mirror takes it: %v", f.Name, has)
		}
	})
}

// TestCommandsInDocs holds the commands of the documentation to what there is: names of commands, flags, and how many arguments.
func TestCommandsInDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, file := range append(files, "../../README.md", "../../CONTRIBUTING.md") {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, page...)
	}
	text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("$PWD"), []byte("/tmp")), []byte("\\\n"), nil)
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(strings.TrimSuffix(line, " &\n"), " #")
			line = regexp.MustCompile(`^([A-Z_]+=\S+ )*(bin/)?`).ReplaceAllString(line, "")
			if !strings.HasPrefix(line, "larder ") {
				continue
			}
			commands++
			words := regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(line, -1)[1:]
			c, args, err := newRoot(&cli{settings: settings.New()}).Find(words)
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if err := c.ParseFlags(args); err != nil {
				t.Errorf("%s: %v", line, err)
			} else if err := c.ValidateArgs(c.Flags().Args()); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if commands < 100 {
		t.Errorf("the documentation has %d commands", commands)
	}
}

// docs/libraries.md says of each direct dependency why it is there.
func TestLibrariesAreDocumented(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", mod, nil)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/libraries.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		prefix, _, _ := module.SplitPathVersion(r.Mod.Path)
		if !r.Indirect && !bytes.Contains(page, []byte(path.Base(prefix))) {
			t.Errorf("docs/libraries.md does not say what %s is for", r.Mod.Path)
		}
	}
}

// TestLinks holds links of the documentation to files and headings that there are.
func TestLinks(t *testing.T) {
	fences := regexp.MustCompile("(?ms)^```.*?^```$")
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	markup := strings.NewReplacer("`", "", "*", "")
	noAnchor := regexp.MustCompile(`[^\pL\pN_ -]`)
	texts, anchors := map[string]string{}, map[string]bool{}
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == ".git"):
			return filepath.SkipDir
		case filepath.Ext(file) != ".md":
			return nil
		}
		text, err := os.ReadFile(file)
		texts[file] = fences.ReplaceAllString(string(text), "")
		for _, h := range heading.FindAllStringSubmatch(texts[file], -1) { // as GitHub names them
			anchors[file+"#"+strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(markup.Replace(h[1])), ""), " ", "-")] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	link, code, links := regexp.MustCompile(`\]\(([^)\s]+)\)`), regexp.MustCompile("`[^`\n]*`"), 0
	for file, text := range texts {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			to, anchor, hasAnchor := strings.Cut(found[1], "#")
			if strings.Contains(to, ":") {
				continue // another host
			}
			links++
			target := filepath.Join(filepath.Dir(file), to)
			if to == "" {
				target = file
			}
			if _, err := os.Stat(target); err != nil || hasAnchor && !anchors[target+"#"+anchor] {
				t.Errorf("%s: nothing is at %s", file, found[1])
			}
		}
	}
	if links < 200 {
		t.Errorf("the documentation has %d links", links)
	}
}

// TestArchitectureNamesWhatExists checks that each path in the tables of docs/architecture.md exists, and that the table of
// packages has a row for each package.
func TestArchitectureNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## Where to change what\n")
	changes, rest, _ := strings.Cut(rest, "\n## The packages\n")
	table, _, found := strings.Cut(rest, "\n## ")
	if !found {
		t.Fatal("docs/architecture.md has lost the table of changes or that of packages")
	}
	paths := 0
	for _, m := range regexp.MustCompile("`([a-z][\\w./-]*/[\\w./-]+)`").FindAllStringSubmatch(changes, -1) {
		paths++
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("docs/architecture.md: %v", err)
		}
	}
	if paths < 40 {
		t.Errorf("the table of changes names %d paths", paths)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` ").FindAllStringSubmatch(table, -1) {
		rows[m[1]] = true
	}
	for _, top := range []string{"api", "bot", "cmd", "internal", "kvstore", "logs", "packages", "server"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() == "testkit" || d.Name() == "browsertest"):
				return filepath.SkipDir
			case d.IsDir():
				sources, err := filepath.Glob(filepath.Join(file, "*.go"))
				dir := filepath.ToSlash(strings.TrimPrefix(file, filepath.Clean("../..")+string(filepath.Separator)))
				if has := len(sources) > 0; has && !rows[dir] {
					t.Errorf("the table of packages in docs/architecture.md has no row for %s", dir)
				}
				delete(rows, dir)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir := range rows {
		t.Errorf("docs/architecture.md has a row for %s, which does not exist", dir)
	}
}
