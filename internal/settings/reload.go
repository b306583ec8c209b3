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
	// copyFrom sets the value to that of other, which is of the same type, and reports whether it was the same before.
	copyFrom(pflag.Value) (same bool)
}

// Reload reads the configuration file again, and returns new settings with the same flags and the same environment. They share the
// log level of s. s does not change. The error is that of [Settings.Load]; the returned settings are incomplete then. Reload does not
// call [Settings.ReadFiles].
func (s *Settings) Reload() (*Settings, error) {
	fresh := New()
	s.Flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			now := fresh.Flags.Lookup(f.Name)
			now.Value.(copied).copyFrom(f.Value)
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

// DiffFrom returns the differences between reloaded settings, s, and the old ones, which they replace. It resets settings in s that a
// running process cannot change to their old values. It compares files that settings name by the content that [Settings.ReadFiles]
// has read into both.
func (s *Settings) DiffFrom(old *Settings) (c Changes) {
	s.Flags.VisitAll(func(f *pflag.Flag) {
		before := old.Flags.Lookup(f.Name)
		scratch := New().Flags.Lookup(f.Name).Value
		scratch.(copied).copyFrom(f.Value)
		same := scratch.(copied).copyFrom(before.Value)
		if same && !bytes.Equal(s.files[f.Name].text, old.files[f.Name].text) || f.Name == "rooms" && !reflect.DeepEqual(s.inline, old.inline) {
			same = false
		}
		switch {
		case same:
			return
		case fixed[f.Name]:
			c.Fixed = append(c.Fixed, f.Name)
			f.Value.(copied).copyFrom(before.Value)
		case !live[f.Name], f.Name == "rooms" && (s.Rooms == Off || old.Rooms == Off), f.Name == "tls-cert" && (s.TLSCert == "" || old.TLSCert == ""):
			c.Run = true
		}
		c.Names = append(c.Names, f.Name)
	})
	return c
}

// ApplyLogLevel sets the level of the loggers of [Settings.NewLogger] to that of these settings: log-level, or if that is not
// set, the level that NewLogger received.
func (s *Settings) ApplyLogLevel() {
	s.level.Set(s.least)
	if s.IsSet("log-level") {
		s.level.Set(s.LogLevel)
	}
}

// A file is the content of a file that a setting names.
type file struct {
	text []byte
	err  error // why it cannot be read; nil if it can
}

// ReadFiles reads the files of the settings rooms, hook-secret-file, witness-policy and sigstore-root into this version of the
// settings, which does not change from then on. Later changes of these files come into force at the next reload. It keeps errors
// for [Settings.ReadFile]. Other files, such as certificates, it leaves to those that use them.
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

// ReadFile returns the content of the file at path that the setting name has. If [Settings.ReadFiles] has read the file of that
// setting, it returns what that read, and path does not count; otherwise, in a command, it reads the file now. If the file cannot be
// read, the error is a [Mistake].
func (s *Settings) ReadFile(name, path string) ([]byte, error) {
	read, ok := s.files[name]
	if !ok {
		read.text, read.err = os.ReadFile(path)
	}
	if read.err != nil {
		return nil, Mistakef("%s: %w", s.Origin(name), read.err)
	}
	return read.text, nil
}
