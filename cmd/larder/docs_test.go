package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the settings in docs/configuration.md")

const documentation = "../../docs/configuration.md"

// settingsTable is the part of the documentation that is printed from the flags.
func settingsTable() string {
	a := &cli{settings: settings.New()}
	commands := newRoot(a).Commands()
	var b strings.Builder
	b.WriteString("| setting | environment | default | used by | meaning |\n| --- | --- | --- | --- | --- |\n")
	a.settings.Flags.VisitAll(func(f *pflag.Flag) {
		var users []string
		for _, c := range commands {
			if c.Flags().Lookup(f.Name) == f {
				users = append(users, c.Name())
			}
		}
		_, usage := pflag.UnquoteUsage(f)
		value := f.DefValue
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", f.Name, settings.EnvName(f.Name), value, strings.Join(users, ", "), strings.ReplaceAll(usage, "|", "\\|"))
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
	used := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			used[f.Name] = true
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
	a.settings.Flags.VisitAll(func(f *pflag.Flag) {
		if !used[f.Name] {
			t.Errorf("no command uses --%s", f.Name)
		}
	})
}

// TestCommandsInDocs holds the commands of the runbook and of the cluster's page to what there is: names of commands, flags, and how many arguments.
func TestCommandsInDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile("../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, bytes.ReplaceAll(more, []byte("$PWD"), []byte("/tmp"))...)
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(strings.TrimSuffix(line, " &\n"), " #")
			if !strings.HasPrefix(line, "larder ") {
				continue
			}
			commands++
			words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1)[1:]
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
	if commands < 15 {
		t.Errorf("the runbook has %d commands", commands)
	}
}
