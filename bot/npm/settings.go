package npm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/larder-cdn/larder/internal/text"
)

// loadSettings returns npm's settings, those that decide last: of the file beside npm, the global one, the user's, the one of the project in dir, and
// the environment. A file that exists and cannot be read or parsed is an error.
func loadSettings(dir string) ([]setting, error) {
	var failed error // the first
	read := func(name string) []setting {
		settings, err := readNpmrc(name)
		failed = cmp.Or(failed, err)
		return settings
	}
	environment := environmentSettings(os.Environ())
	builtin := read(builtinFile())
	project := read(filepath.Join(dir, ".npmrc"))
	userFile, ok := findPath("userconfig", builtin, project, environment)
	if !ok {
		if home, err := os.UserHomeDir(); err == nil {
			userFile = filepath.Join(home, ".npmrc")
		}
	}
	user := read(userFile)
	globalFile, ok := findPath("globalconfig", builtin, user, project, environment)
	if !ok {
		prefix, ok := findPath("prefix", builtin, user, project, environment)
		if !ok {
			prefix = os.Getenv("PREFIX")
		}
		if prefix != "" {
			globalFile = filepath.Join(prefix, "etc", "npmrc")
		}
	}
	global := read(globalFile)
	return slices.Concat(builtin, global, user, project, environment), failed
}

// findPath returns the path that the last source with a value for the key has for it, with ~ expanded. ok is false if none has one.
func findPath(key string, sources ...[]setting) (name string, ok bool) {
	for _, source := range sources {
		for _, s := range source {
			if s.key == key && s.lastValue() != "" {
				name, ok = expandHome(s.lastValue()), true
			}
		}
	}
	return name, ok
}

// expandHome replaces ~/ at the start of a path by the home folder. It returns other paths unchanged.
func expandHome(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return name
}

// readNpmrc reads an .npmrc file and expands the variables in it. It returns no settings if the name is "" or the file does not exist.
func readNpmrc(name string) ([]setting, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var settings []setting
	if err == nil {
		settings, err = parseNpmrc(name, string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read npm's configuration: %w", err)
	}
	expandVariables(settings)
	return settings, nil
}

// environmentSettings returns the settings in those variables of environ, NAME=VALUE each, that start with npm_config_, in any case, and are not
// empty. The rest of the name is the key. In the credentials of one registry it is taken literally; in others _ means -, and case does not matter.
// References to variables in values are expanded.
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
		settings = append(settings, setting{key: key, values: strings.Split(trimSpace(value), "\n\n"), origin: "the variable " + name})
	}
	expandVariables(settings)
	return settings
}

// expandVariables replaces the references to environment variables in all keys and values, in place.
func expandVariables(settings []setting) {
	for i, s := range settings {
		settings[i].key = expandReferences(s.key, os.LookupEnv)
		for n, value := range s.values {
			s.values[n] = expandReferences(value, os.LookupEnv)
		}
	}
}

// builtinFile returns the path of the npmrc in the folder of the npm that PATH finds, whether or not the file exists; "" without npm.
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

// A setting is the values that one source has for one key.
type setting struct {
	key    string
	values []string // of one, unless list
	list   bool     // the file writes the key as key[]
	origin string   // for errors: the file and line, or the variable
}

// lastValue returns the last value of a setting. A setting that is not a list has one.
func (s setting) lastValue() string { return s.values[len(s.values)-1] }

// parseNpmrc parses text, the content of the file name, in the ini dialect of npm: key = value, key[] = value for lists, quotes as in JSON, comments
// after ; and # unless escaped by a backslash. A key that is repeated has the last value, or grows if it is a list. It ignores settings below a
// [section], as npm does. Unlike npm it refuses a line without "=", which would be a setting of that name. Errors do not quote the file, which may
// contain a token.
func parseNpmrc(name, text string) ([]setting, error) {
	var settings []setting
	index := make(map[string]int)
	for number, row := range strings.Split(text, "\n") {
		for line := range strings.SplitSeq(row, "\r") {
			trimmed := trimSpace(line)
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

var section = text.NewRegexp(`^\[[^\]]*\]\s*$`)

// cutBrackets cuts [] off the end of a key, and reports whether it was there. A key that is only [] stays as it is, as in npm.
func cutBrackets(key string) (string, bool) {
	if name, ok := strings.CutSuffix(key, "[]"); ok && name != "" {
		return name, true
	}
	return key, false
}

// unquote removes white space around a value, and its quotes, or else its escapes and a comment.
func unquote(text string) string {
	text = trimSpace(text)
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
			return trimSpace(out.String())
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
	return trimSpace(out.String())
}

// trimSpace removes what JavaScript calls space from both ends of a text, including a byte order mark.
func trimSpace(text string) string {
	return strings.TrimFunc(text, func(c rune) bool { return c == '\ufeff' || c != '\u0085' && unicode.IsSpace(c) })
}

var reference = text.NewRegexp(`(\\*)\$\{([^${}?]+)(\?)?\}`)

// expandReferences replaces ${NAME} by the value of a variable. If the variable is not set, ${NAME} stays and ${NAME?} is removed. An odd number of
// backslashes before it prevents the replacement; half of the backslashes stay.
func expandReferences(text string, lookup func(string) (string, bool)) string {
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
