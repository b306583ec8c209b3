package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// envPrefix begins the name of every environment variable that is a setting.
const envPrefix = "LARDER_"

// EnvName returns the name of the environment variable of a flag: LARDER_READY_FILE for ready-file.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// serviceLink matches the variables that Kubernetes and Docker links set in a container beside a service named larder
// or larder-something. They are not meant for us, and refusing them would stop Larder from starting there.
var serviceLink = text.NewRegexp(`^LARDER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// Load sets what no flag has set: from the variables in environ, NAME=VALUE each, then from the configuration file, then from the
// profile. It also reads the GitHub token and the bucket's region from environ. It returns all mistakes in variables and file,
// each with its place, or else one in settings that depend on one another.
func (s *Settings) Load(environ []string) error {
	s.environ = environ
	s.Token, s.TokenFrom = s.lookupEnv(TokenVariables...)
	s.BucketRegion, _ = s.lookupEnv("AWS_REGION", "AWS_DEFAULT_REGION")
	fromEnv, err := s.loadEnv(environ)
	if s.ConfigFile != "" {
		err = errors.Join(err, s.loadFile(s.ConfigFile, fromEnv))
	}
	if err == nil {
		err = s.applyProfile()
	}
	if err == nil {
		err = s.check()
	}
	return err
}

// loadEnv sets settings that no flag has set from the environment variables in environ, and returns the names of those settings.
// Unknown variables that begin with LARDER_, and invalid values, are mistakes; it returns all of them.
func (s *Settings) loadEnv(environ []string) (set map[string]bool, err error) {
	known := map[string]*pflag.Flag{}
	var names []string
	s.Flags.VisitAll(func(f *pflag.Flag) {
		known[EnvName(f.Name)] = f
		names = append(names, EnvName(f.Name))
	})
	set = map[string]bool{}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || serviceLink.MatchString(name) || slices.Contains(TokenVariables, name) || name == SecretVariable {
			continue
		}
		flag, ok := known[name]
		if !ok {
			err = errors.Join(err, fmt.Errorf("%s: no such setting%s", name, suggestName(name, names, "unset it")))
			continue
		}
		if flag.Changed {
			continue
		}
		set[flag.Name] = true
		if mistake := s.set(flag.Name, name, text); mistake != nil {
			err = errors.Join(err, fmt.Errorf("%s=%q: %w", name, text, mistake))
		}
	}
	return set, err
}

// loadFile sets settings from the configuration file, a flat YAML mapping, except those in fromEnv and those that a flag has set.
// Settings that the present command does not use are no mistake, so that one file serves every command. It returns all mistakes:
// unknown and repeated names, and invalid values.
func (s *Settings) loadFile(file string, fromEnv map[string]bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Origin("config"), err)
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
	s.Flags.VisitAll(func(f *pflag.Flag) {
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
			problems = append(problems, fmt.Errorf("%s: no such setting as %q%s", at, key.Value, suggestName(key.Value, names, "remove it")))
			continue
		case twice:
			problems = append(problems, fmt.Errorf("%s: %s is set already in line %d; remove one of the two", at, key.Value, first))
			continue
		}
		lines[key.Value] = key.Line
		if s.Flags.Lookup(key.Value).Changed || fromEnv[key.Value] {
			continue
		}
		if key.Value == "rooms" && value.Kind == yaml.SequenceNode {
			if err := s.setRooms(file, at, value); err != nil {
				problems = append(problems, err) // it has the lines itself
			}
			continue
		}
		if err := s.setNode(key.Value, at, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", at, key.Value, err))
		}
	}
	return errors.Join(problems...)
}

// setNode gives the setting name the value of a YAML node; a list may have several. place is the line of the file, for messages.
func (s *Settings) setNode(name, place string, node *yaml.Node) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	_, isList := s.Flags.Lookup(name).Value.(*listValue)
	switch {
	case node.Kind == yaml.SequenceNode && isList:
		for _, member := range node.Content {
			if err := s.setNode(name, place, member); err != nil {
				return err
			}
		}
		return nil
	case node.Kind != yaml.ScalarNode:
		return errors.New("must be a single value")
	case node.Tag == "!!null":
		return errors.New("has no value; give it one, or remove the line to have the default")
	}
	if err := s.set(name, place, node.Value); err != nil {
		return fmt.Errorf("%q %w", node.Value, err)
	}
	return nil
}

// check returns a mistake in settings that depend on one another, nil for none. It also sets Proxies and Hook, which follow from
// other settings.
func (s *Settings) check() error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		has, lacks := "tls-cert", "tls-key"
		if s.TLSCert == "" {
			has, lacks = lacks, has
		}
		return fmt.Errorf("%s needs --%s too: HTTPS takes a certificate and its key", s.Origin(has), lacks)
	}
	if err := errors.Join(s.checkACME(), s.checkCluster()); err != nil {
		return err
	}
	var err error
	if s.Proxies, err = requests.NewProxies(s.TrustedProxies, s.ForwardedHeader); err != nil {
		return fmt.Errorf("%s, %s: %w", s.Origin("trusted-proxies"), s.Origin("forwarded-header"), err)
	}
	if s.ProxyProtocol && len(s.TrustedProxies) == 0 {
		return fmt.Errorf("%s needs --trusted-proxies too: from whom the PROXY protocol is taken", s.Origin("proxy-protocol"))
	}
	if s.PurgeHook == "" {
		return nil
	}
	// Not when it is set, where messages repeat the value: this one may have a password in it.
	if s.Hook, err = notify.ParsePurgeHook(s.PurgeHook); err != nil {
		return fmt.Errorf("%s %w", s.Origin("purge-hook"), err)
	}
	return nil
}

// checkACME returns a mistake in the settings about certificates of an ACME server, nil for none.
func (s *Settings) checkACME() error {
	switch {
	case len(s.ACMEDomains) > 0 && s.TLSCert != "":
		return fmt.Errorf("%s and %s both have a certificate; remove one of the two", s.Origin("acme-domain"), s.Origin("tls-cert"))
	case len(s.ACMEDomains) > 0 && !strings.HasPrefix(s.ACMEDirectory, "https://"):
		return fmt.Errorf("%s must be the https URL of the ACME server's directory", s.Origin("acme-directory"))
	case s.HTTPListen != "" && !s.HTTPS():
		return fmt.Errorf("%s needs a certificate too, with --acme-domain or --tls-cert: it leads to HTTPS", s.Origin("http-listen"))
	case len(s.ACMEDomains) > 0:
		return nil
	}
	for _, name := range []string{"acme-email", "acme-directory"} {
		if s.IsSet(name) {
			return fmt.Errorf("%s needs --acme-domain too: the domain of the certificate", s.Origin(name))
		}
	}
	return nil
}

// checkCluster returns a mistake in the settings about a cluster, nil for none.
func (s *Settings) checkCluster() error {
	store := ""
	for name, at := range map[string]string{"bucket": s.Bucket, "backup": s.Backup} {
		if strings.HasPrefix(at, "s3:") {
			store = name
		}
	}
	switch {
	case store != "" && s.BucketEndpoint == "":
		return fmt.Errorf("%s needs --bucket-endpoint too: the URL of the object store, such as https://s3.eu-central-1.amazonaws.com", s.Origin(store))
	case s.NodeURL != "" && s.Bucket == "":
		return fmt.Errorf("%s needs --bucket too: what the nodes of the cluster share", s.Origin("node-url"))
	}
	return nil
}

// CheckEndpoint returns a [Mistake] if bucket-endpoint is set, and neither bucket nor backup is an s3: bucket, nil otherwise.
// Processes call it, not commands: those such as larder backup take the bucket as an argument.
func (s *Settings) CheckEndpoint() error {
	if s.BucketEndpoint == "" || strings.HasPrefix(s.Bucket, "s3:") || strings.HasPrefix(s.Backup, "s3:") {
		return nil
	}
	return Mistakef("%s has no effect without --bucket or --backup with a bucket there: s3://NAME[/PREFIX]", s.Origin("bucket-endpoint"))
}

// suggestName returns the end of a message about an unknown name. It names the most similar one of known, or if none is similar,
// the advice otherwise.
func suggestName(name string, known []string, otherwise string) string {
	if best, ok := text.Nearest(name, known); ok {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	return "; " + otherwise + " (`larder up --help` lists the settings)"
}

// SecretVariable may hold the secret of webhooks.
const SecretVariable = envPrefix + "HOOK_SECRET"

// TokenVariables may hold GitHub's token; the first one that does counts.
var TokenVariables = []string{envPrefix + "GITHUB_TOKEN", "GITHUB_TOKEN"}

// lookupEnv returns the value of the first of the named variables that is set and not empty in the environment that Load got, and
// the name of that variable; "" and "" for none.
func (s *Settings) lookupEnv(names ...string) (value, variable string) {
	for _, name := range names {
		for _, pair := range s.environ {
			if value, ok := strings.CutPrefix(pair, name+"="); ok && value != "" {
				return value, name
			}
		}
	}
	return "", ""
}

// HookSecret returns the secret of incoming webhooks, from its variable, or from its file without the line ends after it; "" for none.
// Errors are of the type [Mistake]: both have one, the file cannot be read, or the secret is too short or begins or ends with white space.
func (s *Settings) HookSecret() (string, error) {
	secret, from := s.lookupEnv(SecretVariable)
	if s.HookSecretFile != "" {
		if secret != "" {
			return "", Mistakef("%s and %s both have a secret; remove one of them", s.Origin("hook-secret-file"), SecretVariable)
		}
		data, err := s.ReadFile("hook-secret-file", s.HookSecretFile)
		if err != nil {
			return "", err
		}
		secret, from = strings.TrimRight(string(data), "\r\n"), s.Origin("hook-secret-file")
	}
	if secret == "" && s.HookSecretFile == "" {
		return "", nil
	}
	if err := git.CheckWebhookSecret(secret); err != nil {
		return "", Mistakef("%s: %w", from, err)
	}
	return secret, nil
}

// defaultRooms keep a crowd that downloads whole releases from taking the machine down; their limits are far above what
// an ordinary day brings.
const defaultRooms = `
- name: downloads
  path: /download/
  total_active_users: 20000
  new_users_per_minute: 20000
  session_duration: 1
  each_node: true
`

// setRooms sets the waiting rooms to those in list, which is in the configuration file itself. place is their line, for messages.
// Invalid rooms are an error.
func (s *Settings) setRooms(file, place string, list *yaml.Node) error {
	rooms, err := config.ParseNode(file, list)
	if err != nil {
		return err
	}
	if s.inlineText, err = config.Marshal(list); err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	if s.inlineCanonical, err = config.Canonical(list); err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	s.inline, s.inlineFile = rooms, file
	s.origins["rooms"] = place
	return nil
}

// ReadRooms returns the text of the waiting rooms, and does not parse it: of those in the configuration file, else in the file that
// the setting names, else, if it is not set, the built-in ones. on is false if the settings turn rooms off. A file that cannot be
// read is a [Mistake]; on is true then.
func (s *Settings) ReadRooms() (f config.File, on bool, err error) {
	switch {
	case s.inline != nil:
		return config.File{Name: s.inlineFile, Text: s.inlineText, Canonical: s.inlineCanonical}, true, nil
	case s.Rooms == Off:
		return f, false, nil
	case s.Rooms == "":
		return config.File{Name: "the default rooms", Text: []byte(defaultRooms), Default: true}, true, nil
	}
	text, err := s.ReadFile("rooms", s.Rooms)
	if err != nil {
		return f, true, err
	}
	return config.File{Name: s.Rooms, Text: text}, true, nil
}
