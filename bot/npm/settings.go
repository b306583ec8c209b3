package npm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/larder-cdn/larder/internal/lazyregexp"
)

// loadSettings gives npm's settings, those that decide last: of the file beside npm, the global one, the user's, the
// project's, and the environment.
func loadSettings(dir string) ([]setting, error) {
	environment := environmentSettings(os.Environ())
	builtin, err := readFile(builtinFile())
	if err != nil {
		return nil, err
	}
	project, err := readFile(filepath.Join(dir, ".npmrc"))
	if err != nil {
		return nil, err
	}
	userFile, ok := find("userconfig", builtin, project, environment)
	if !ok {
		if home, err := os.UserHomeDir(); err == nil {
			userFile = filepath.Join(home, ".npmrc")
		}
	}
	user, err := readFile(userFile)
	if err != nil {
		return nil, err
	}
	globalFile, ok := find("globalconfig", builtin, user, project, environment)
	if !ok {
		prefix, ok := find("prefix", builtin, user, project, environment)
		if !ok {
			prefix = os.Getenv("PREFIX")
		}
		if prefix != "" {
			globalFile = filepath.Join(prefix, "etc", "npmrc")
		}
	}
	global, err := readFile(globalFile)
	if err != nil {
		return nil, err
	}
	var all []setting
	for _, source := range [][]setting{builtin, global, user, project, environment} {
		all = append(all, source...)
	}
	return all, nil
}

// find gives the file or folder that a key names in the last source that has it.
func find(key string, sources ...[]setting) (name string, ok bool) {
	for _, source := range sources {
		for _, s := range source {
			if s.key == key && s.last() != "" {
				name, ok = homePath(s.last()), true
			}
		}
	}
	return name, ok
}

// homePath puts the home folder in place of ~.
func homePath(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return name
}

// readFile reads an .npmrc file, which need not exist.
func readFile(name string) ([]setting, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read npm's configuration: %w", err)
	}
	settings, err := parseNpmrc(name, string(text))
	if err != nil {
		return nil, fmt.Errorf("couldn't read npm's configuration: %w", err)
	}
	expandAll(settings)
	return settings, nil
}

// environmentSettings are the variables that begin with npm_config_, in any case. Of those for one registry's
// credentials the rest of the name is the key; in others _ stands for -, and case does not matter.
func environmentSettings(environ []string) []setting {
	const prefix = "npm_config_"
	var settings []setting
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if len(name) <= len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) || value == "" {
			continue
		}
		key := name[len(prefix):]
		if !strings.HasPrefix(key, "//") {
			key = strings.ToLower(key[:1] + strings.ReplaceAll(key[1:], "_", "-"))
		}
		// Several values are separated as npm separates them for the programs that it runs.
		settings = append(settings, setting{key: key, values: strings.Split(trim(value), "\n\n"), origin: "the variable " + name})
	}
	expandAll(settings)
	return settings
}

func expandAll(settings []setting) {
	for i, s := range settings {
		settings[i].key = expand(s.key, os.LookupEnv)
		for n, value := range s.values {
			s.values[n] = expand(value, os.LookupEnv)
		}
	}
}

// builtinFile is where the npm that would be run keeps its own configuration.
func builtinFile() string {
	program, err := exec.LookPath("npm")
	if err != nil {
		return ""
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(program), "..", "npmrc")
}

// A setting is what one source says of one key.
type setting struct {
	key    string
	values []string // of one, unless list
	list   bool     // the file writes the key as key[]
	origin string   // for errors: the file and line, or the variable
}

// last gives the value of a setting that is no list.
func (s setting) last() string { return s.values[len(s.values)-1] }

// parseNpmrc reads the dialect of ini that npm's own reader knows: key = value, key[] = value for lists, quotes as in
// JSON, comments after ; and # unless escaped by a backslash. Settings below a [section] are none of npm's. Unlike
// npm it refuses a line without "=", which would otherwise be a setting of that name. An error does not quote
// the file, which may hold a token.
func parseNpmrc(name, text string) ([]setting, error) {
	var settings []setting
	index := make(map[string]int)
	for number, row := range strings.Split(text, "\n") {
		for line := range strings.SplitSeq(row, "\r") {
			trimmed := trim(line)
			if trimmed == "" || trimmed[0] == ';' || trimmed[0] == '#' {
				continue
			}
			if section.MatchString(line) {
				return settings, nil
			}
			key, value, ok := strings.Cut(line, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("%s:%d: want key=value or a comment", name, number+1)
			}
			key, list := cutBrackets(unquote(key))
			s := setting{key: key, values: []string{unquote(value)}, list: list, origin: fmt.Sprintf("%s:%d", name, number+1)}
			at, known := index[key]
			switch {
			case !known:
				index[key] = len(settings)
				settings = append(settings, s)
			case list || settings[at].list:
				s.values, s.list = append(settings[at].values, s.values...), true
				fallthrough
			default:
				settings[at] = s
			}
		}
	}
	return settings, nil
}

var section = lazyregexp.New(`^\[[^\]]*\]\s*$`)

func cutBrackets(key string) (string, bool) {
	if name, ok := strings.CutSuffix(key, "[]"); ok && name != "" {
		return name, true
	}
	return key, false
}

// unquote undoes quotes, or escapes, and takes a comment away.
func unquote(text string) string {
	text = trim(text)
	for _, quote := range []string{`"`, `'`} {
		if !strings.HasPrefix(text, quote) || !strings.HasSuffix(text, quote) {
			continue
		}
		if quote == "'" {
			text = strings.TrimSuffix(text[1:], "'")
		}
		var value string
		if json.Unmarshal([]byte(text), &value) == nil {
			return value
		}
		return text
	}
	var out strings.Builder
	for escaped := false; text != ""; text = text[1:] {
		switch c := text[0]; {
		case !escaped && (c == ';' || c == '#'):
			return trim(out.String())
		case !escaped && c == '\\':
			escaped = true
			if len(text) == 1 {
				out.WriteByte(c)
			}
		default:
			if escaped && c != '\\' && c != ';' && c != '#' {
				out.WriteByte('\\')
			}
			out.WriteByte(c)
			escaped = false
		}
	}
	return trim(out.String())
}

// trim takes away what JavaScript calls space, a byte order mark included.
func trim(text string) string {
	return strings.TrimFunc(text, func(c rune) bool { return c == '\ufeff' || c != '\u0085' && unicode.IsSpace(c) })
}

var reference = lazyregexp.New(`(\\*)\$\{([^${}?]+)(\?)?\}`)

// expand replaces ${NAME} by the variable's value. Where it is not set, ${NAME} stays and ${NAME?} is nothing; an odd
// number of backslashes before it keeps it as it is.
func expand(text string, lookup func(string) (string, bool)) string {
	return reference.ReplaceAllStringFunc(text, func(whole string) string {
		parts := reference.FindStringSubmatch(whole)
		backslashes, name := len(parts[1]), parts[2]
		if backslashes%2 == 1 {
			return whole[(backslashes+1)/2:]
		}
		value, ok := lookup(name)
		if !ok && parts[3] == "" {
			value = "${" + name + "}"
		}
		return whole[:backslashes/2] + value
	})
}
