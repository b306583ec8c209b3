package settings

import "fmt"

// Profiles are the presets of --profile: by its name, the settings that take another default. What the operator sets counts before
// them. docs/configuration.md lists them.
var Profiles = map[string]map[string]string{
	// team is a service in a private network, for some hundred people.
	"team": {"listen": ":8080", "max-connections": "2000", "interval": "30m"},
	// public is a service on the internet that has a machine of 4 GiB for itself.
	"public": {"listen": ":443", "http-listen": ":80", "max-connections": "50000", "cache": "1GiB", "sending": "512MiB", "store-cache": "512MiB", "interval": "15m", "drain": "30s", "lame-duck": "10s"},
	// mirror is a service that serves what another one publishes, behind a load balancer or proxy.
	"mirror": {"listen": ":8080", "max-connections": "50000", "cache": "1GiB", "sending": "512MiB", "store-cache": "512MiB", "memory": "64MiB", "drain": "30s", "lame-duck": "10s"},
}

// applyProfile sets the presets of the profile in the settings, except settings that the operator has set, and http-listen if listen
// is set. For [Settings.IsSet] the presets are not set. It returns an error if the profile is public and the operator has set neither
// a certificate nor listen.
func (s *Settings) applyProfile() error {
	listens := s.IsSet("listen")
	if s.Profile == "public" && !s.HTTPS() && !listens {
		return fmt.Errorf("%s: the profile public listens on :443, which needs a certificate: set acme-domain, or tls-cert and tls-key; behind a proxy that has the certificate, set listen", s.Origin("profile"))
	}
	for name, value := range Profiles[s.Profile] {
		if s.IsSet(name) || name == "http-listen" && listens {
			continue
		}
		if err := s.Flags.Lookup(name).Value.Set(value); err != nil {
			return fmt.Errorf("the profile %s: %s: %w", s.Profile, name, err)
		}
	}
	return nil
}
