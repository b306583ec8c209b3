package app

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
)

// The linker sets these; see the Makefile.
var version, commit, date string

// A Build is the version and the sources of a program, and its JSON form.
type Build struct {
	// Version is a tag such as v1.2.3, or a Go pseudo-version such as v0.0.0-20260102150405-0123456789ab, which ends in +dirty
	// where files were changed. It is "unknown" where the program was built without git.
	Version string `json:"version"`
	// Commit and Date, in RFC 3339, are the commit's; they may be empty.
	Commit string `json:"commit,omitempty"`
	Date   string `json:"date,omitempty"`
	// Go is the version of Go, Platform the system and the architecture.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// unknownVersion is the version of a program that was built without git.
const unknownVersion = "unknown"

// ThisBuild returns what this program was built from: what the linker has set, or else what the go command has recorded.
var ThisBuild = sync.OnceValue(func() Build {
	b := Build{Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" {
		if b.Version = info.Main.Version; b.Version == "(devel)" {
			b.Version = ""
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Date = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = unknownVersion
	}
	return b
})

// String returns a line for `larder version`: version, commit, date, Go version and platform.
func (b Build) String() string {
	from := ""
	if b.Commit != "" {
		from = fmt.Sprintf(", commit %.12s of %s", b.Commit, b.Date)
	}
	return fmt.Sprintf("larder %s%s (%s, %s)", b.Version, from, b.Go, b.Platform)
}

// storeProgram returns the text by which a store records which version of the program wrote it: the version, or "of unknown
// version".
func (b Build) storeProgram() string {
	if b.Version == unknownVersion {
		return "of unknown version"
	}
	return b.Version
}

// Version returns the version of this build.
func Version() string { return ThisBuild().Version }

// UserAgent returns the value of the User-Agent field in requests to other servers, larder/VERSION.
func UserAgent() string { return "larder/" + Version() }
