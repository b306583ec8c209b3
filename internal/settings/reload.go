package settings

import (
	"os"
	"reflect"

	"github.com/spf13/pflag"
)

// fixed are the settings that a process cannot change: what they name is open, or others know it. All else can.
var fixed = map[string]bool{
	"config": true, "data": true, "keys": true, "listen": true, "http-listen": true, "private-listen": true, "ready-file": true, "log-format": true,
	"bucket": true, "bucket-endpoint": true, "node-url": true,
}

// Reloadable tells whether a process that runs can take up another value of a setting.
func Reloadable(name string) bool { return !fixed[name] }

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

// TakeUp compares settings that were reloaded with those that a process runs with. It returns the names of those that are
// different now, and of those among them that the process cannot change, which get the value that they had.
func (s *Settings) TakeUp(old *Settings) (changed, restart []string) {
	s.Flags.VisitAll(func(f *pflag.Flag) {
		before := old.Flags.Lookup(f.Name)
		scratch := New().Flags.Lookup(f.Name).Value
		scratch.(copied).takeFrom(f.Value)
		switch same := scratch.(copied).takeFrom(before.Value); {
		case f.Name == "rooms" && !reflect.DeepEqual(s.inline, old.inline):
			changed = append(changed, f.Name)
		case same:
		case Reloadable(f.Name):
			changed = append(changed, f.Name)
		default:
			changed, restart = append(changed, f.Name), append(restart, f.Name)
			f.Value.(copied).takeFrom(before.Value)
		}
	})
	return changed, restart
}

// UseRooms has the settings name the rooms that others name, which were taken up while the process runs.
func (s *Settings) UseRooms(fresh *Settings) {
	s.Rooms, s.inline, s.inlineText, s.inlineFile, s.inlineCanonical, s.readRooms = fresh.Rooms, fresh.inline, fresh.inlineText, fresh.inlineFile, fresh.inlineCanonical, fresh.readRooms
}

// SetLevel has the log of the process go by these settings from now on.
func (s *Settings) SetLevel() {
	s.level.Set(s.least)
	if s.Given("log-level") {
		s.level.Set(s.LogLevel)
	}
}

// Files are the contents of the files that settings name and that are read when a process begins.
func (s *Settings) Files() map[string]string {
	all := make(map[string]string)
	for name, file := range map[string]string{
		"rooms": s.Rooms, "hook-secret-file": s.HookSecretFile, "witness-policy": s.WitnessPolicy,
	} {
		if file != "" && file != Off {
			text, _ := os.ReadFile(file) // the checks say why not
			all[name] = string(text)
		}
	}
	return all
}
