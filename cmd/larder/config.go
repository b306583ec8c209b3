package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/server/purge"
)

// envPrefix begins the name of every environment variable that is a setting.
const envPrefix = "LARDER_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// serviceLink matches the variables that Kubernetes and Docker links set in a container beside a service named larder
// or larder-something. They are not meant for us, and refusing them would stop Larder from starting there.
var serviceLink = regexp.MustCompile(`^LARDER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// load fills in what no flag has set: from environ first, then from the configuration file. It reports every mistake
// it finds, each with the place it stands in.
func (s *settings) load(environ []string) error {
	s.token, s.tokenFrom = githubToken(environ)
	fromEnv, err := s.loadEnv(environ)
	problems := []error{err}
	if s.config != "" {
		problems = append(problems, s.loadFile(s.config, fromEnv))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return s.check()
}

func (s *settings) loadEnv(environ []string) (set map[string]bool, err error) {
	known := map[string]*pflag.Flag{}
	var names []string
	s.flags.VisitAll(func(f *pflag.Flag) {
		known[envName(f.Name)] = f
		names = append(names, envName(f.Name))
	})
	set = map[string]bool{}
	var problems []error
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || serviceLink.MatchString(name) || slices.Contains(tokenVariables, name) || name == secretVariable {
			continue
		}
		flag, ok := known[name]
		if !ok {
			problems = append(problems, fmt.Errorf("%s: no such setting%s", name, suggestion(name, names, "unset it")))
			continue
		}
		if flag.Changed {
			continue
		}
		set[flag.Name] = true
		if err := s.set(flag.Name, name, text); err != nil {
			problems = append(problems, fmt.Errorf("%s=%q: %w", name, text, err))
		}
	}
	return set, errors.Join(problems...)
}

// loadFile reads a flat YAML mapping of settings. Keys for settings that the present command does not use are checked
// and otherwise ignored, so that one file serves every command.
func (s *settings) loadFile(file string, fromEnv map[string]bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", s.origin("config"), err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil // empty, or nothing but comments
	} else if err != nil {
		return fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: holds more than one YAML document; put all settings into the first", file)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: must hold settings as `name: value` lines", file, root.Line)
	}

	var names []string
	s.flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" {
			names = append(names, f.Name)
		}
	})
	lines := map[string]int{}
	var problems []error
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d", file, key.Line)
		first, twice := lines[key.Value]
		switch {
		case !slices.Contains(names, key.Value):
			problems = append(problems, fmt.Errorf("%s: no such setting as %q%s", at, key.Value, suggestion(key.Value, names, "remove it")))
			continue
		case twice:
			problems = append(problems, fmt.Errorf("%s: %s is set already in line %d; remove one of the two", at, key.Value, first))
			continue
		}
		lines[key.Value] = key.Line
		if s.flags.Lookup(key.Value).Changed || fromEnv[key.Value] {
			continue
		}
		if key.Value == "rooms" && value.Kind == yaml.SequenceNode {
			if err := s.setRooms(file, at, value); err != nil {
				problems = append(problems, err) // it tells the lines itself
			}
			continue
		}
		if err := s.setNode(key.Value, at, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", at, key.Value, err))
		}
	}
	return errors.Join(problems...)
}

func (s *settings) setNode(name, at string, node *yaml.Node) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	_, isList := s.flags.Lookup(name).Value.(*listValue)
	switch {
	case node.Kind == yaml.SequenceNode && isList:
		for _, member := range node.Content {
			if err := s.setNode(name, at, member); err != nil {
				return err
			}
		}
		return nil
	case node.Kind != yaml.ScalarNode:
		return errors.New("must be a single value")
	case node.Tag == "!!null":
		return errors.New("has no value; give it one, or remove the line to have the default")
	}
	if err := s.set(name, at, node.Value); err != nil {
		return fmt.Errorf("%q %w", node.Value, err)
	}
	return nil
}

// check looks at settings that depend on one another.
func (s *settings) check() error {
	if (s.tlsCert == "") != (s.tlsKey == "") {
		has, lacks := "tls-cert", "tls-key"
		if s.tlsCert == "" {
			has, lacks = lacks, has
		}
		return fmt.Errorf("%s needs --%s too: HTTPS takes a certificate and its key", s.origin(has), lacks)
	}
	if s.purgeHook == "" {
		return nil
	}
	// Not when it is set, where messages repeat the value: this one may have a password in it.
	var err error
	if s.hook, err = purge.ParseHook(s.purgeHook); err != nil {
		return fmt.Errorf("%s %w", s.origin("purge-hook"), err)
	}
	return nil
}

// suggestion ends a message about an unknown name: the nearest known one where it is near, else what to do.
func suggestion(name string, known []string, otherwise string) string {
	if best := nearest(name, known); best != "" {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	return "; " + otherwise + " (`larder up --help` lists the settings)"
}

// nearest is the known name that name is likely a slip of, or "".
func nearest(name string, known []string) string {
	best, distance := "", len(name)/3+2
	for _, k := range known {
		if d := levenshtein.ComputeDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}
