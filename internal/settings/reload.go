package settings

import (
	"bytes"
	"os"
	"reflect"

	"github.com/spf13/pflag"
)

// fixed are the settings that a process cannot change: what they name is open, or others know it. All else can.
var fixed = map[string]bool{
	"config": true, "data": true, "keys": true, "listen": true, "http-listen": true, "private-listen": true, "ready-file": true, "log-format": true,
	"bucket": true, "bucket-endpoint": true, "node-url": true,
}

// copied is a value that can be that of another setting.
type copied interface {
	takeFrom(pflag.Value) (same bool)
}

// Reload reads the configuration file again, and returns the settings as they would be now, with the same flags and the same
// environment.
func (s *Settings) Reload() (*Settings, error) {
	fresh := New()
	s.Flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			now := fresh.Flags.Lookup(f.Name)
			now.Value.(copied).takeFrom(f.Value)
			now.Changed = true
		}
	})
	fresh.level, fresh.least = s.level, s.least
	return fresh, fresh.Load(s.environ)
}

// live are the settings that need no other run of the role: their consumers read them from the version in force, or subscribe to it.
var live = map[string]bool{
	"cache": true, "drain": true, "lame-duck": true, "log-level": true, "max-connections": true, "private-hosts": true, "rooms": true, "sending": true, "tls-cert": true,
	"tls-key": true,
}

// Changes are the differences between two versions of the settings.
type Changes struct {
	Names []string // of settings, and of those that name a file with other content
	Fixed []string // those of them that a process cannot change
	Run   bool     // some need another run of the role
}

// Replace prepares reloaded settings to replace the old ones, and returns the differences. Settings that a process cannot change keep
// their old values.
func (s *Settings) Replace(old *Settings) (c Changes) {
	s.Flags.VisitAll(func(f *pflag.Flag) {
		before := old.Flags.Lookup(f.Name)
		scratch := New().Flags.Lookup(f.Name).Value
		scratch.(copied).takeFrom(f.Value)
		same := scratch.(copied).takeFrom(before.Value)
		if same && !bytes.Equal(s.files[f.Name].text, old.files[f.Name].text) || f.Name == "rooms" && !reflect.DeepEqual(s.inline, old.inline) {
			same = false
		}
		switch {
		case same:
			return
		case fixed[f.Name]:
			c.Fixed = append(c.Fixed, f.Name)
			f.Value.(copied).takeFrom(before.Value)
		case !live[f.Name], f.Name == "rooms" && (s.Rooms == Off || old.Rooms == Off), f.Name == "tls-cert" && (s.TLSCert == "" || old.TLSCert == ""):
			c.Run = true
		}
		c.Names = append(c.Names, f.Name)
	})
	return c
}

// SetLevel has the log of the process go by these settings from now on.
func (s *Settings) SetLevel() {
	s.level.Set(s.least)
	if s.Given("log-level") {
		s.level.Set(s.LogLevel)
	}
}

// A file is the content of a file that a setting names.
type file struct {
	text []byte
	err  error // why it cannot be read; nil if it can
}

// ReadFiles reads the files that settings name, so that they belong to this version of the settings: what is written into them
// later counts at the next reload. From then on the settings do not change any more.
func (s *Settings) ReadFiles() {
	s.files = map[string]file{}
	for name, path := range map[string]string{
		"rooms": s.Rooms, "hook-secret-file": s.HookSecretFile, "witness-policy": s.WitnessPolicy, "sigstore-root": s.SigstoreRoot,
	} {
		if path != "" && path != Off {
			text, err := os.ReadFile(path)
			s.files[name] = file{text, err}
		}
	}
}

// File returns the content of the file at path that a setting names: as [Settings.ReadFiles] has read it, or for a command, as it is
// now. The error is a [Mistake].
func (s *Settings) File(name, path string) ([]byte, error) {
	read, ok := s.files[name]
	if !ok {
		read.text, read.err = os.ReadFile(path)
	}
	if read.err != nil {
		return nil, Mistakef("%s: %w", s.Origin(name), read.err)
	}
	return read.text, nil
}
