// Command dist makes what a release consists of: archives with a static binary for each system, Debian packages, an image
// of a container, a list of what is inside, and checksums.
//
// What it guarantees: the same commit gives the same bytes, in whatever folder and at whatever time; every date in what it
// makes is SOURCE_DATE_EPOCH. It runs the go command of the PATH, needs no network but for modules, and no other tool.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A platform is a system and an architecture, as Go calls them.
type platform struct{ os, arch string }

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// A release is what is being made.
type release struct {
	source  string // the repository
	out     string // where it goes
	work    string // what is put together first
	ldflags string
	version string // without the v in front
	commit  string
	time    time.Time // of everything
	made    []string  // names of files in out
}

func main() {
	var r release
	flag.StringVar(&r.source, "source", ".", "`DIR` of the repository")
	flag.StringVar(&r.out, "out", "dist", "`DIR` that gets the release; what is in it goes")
	flag.StringVar(&r.ldflags, "ldflags", "", "`FLAGS` for the linker")
	flag.StringVar(&r.version, "version", "", "`VERSION` of the release")
	flag.StringVar(&r.commit, "commit", "", "`COMMIT` that it is made from")
	flag.Parse()
	if err := r.make(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func (r *release) make(ctx context.Context) (err error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil || r.version == "" {
		return fmt.Errorf("give -version, and SOURCE_DATE_EPOCH in the environment; make dist does")
	}
	r.time, r.version = time.Unix(seconds, 0).UTC(), strings.TrimPrefix(r.version, "v")
	for _, dir := range []*string{&r.source, &r.out} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := r.clear(); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "larder-dist-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	for _, p := range platforms {
		if err := r.build(ctx, p); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{r.manual, r.completions, r.archives, r.packages, r.image, r.materials, r.checksums} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clear empties the folder of a release, and refuses to empty any other.
func (r *release) clear() error {
	entries, err := os.ReadDir(r.out)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "larder") && e.Name() != "SHA256SUMS" {
			return fmt.Errorf("%s has %s, which is of no release; choose another folder", r.out, e.Name())
		}
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	return os.MkdirAll(r.out, 0o755)
}

// binary is where the program for p is.
func (r *release) binary(p platform) string { return filepath.Join(r.work, p.os+"-"+p.arch, "larder") }

func (r *release) build(ctx context.Context, p platform) error {
	fmt.Printf("building for %s/%s\n", p.os, p.arch)
	return r.run(ctx, []string{"GOOS=" + p.os, "GOARCH=" + p.arch},
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= "+r.ldflags, "-o", r.binary(p), "./cmd/larder")
}

// manual has the tests of the commands write the manual pages.
func (r *release) manual(ctx context.Context) error {
	dir := filepath.Join(r.work, "man")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return r.run(ctx, nil, "go", "test", "-count", "1", "-run", "^TestManual$", "./cmd/larder", "-man", dir)
}

// shells are those for which there is completion, and where Debian has it.
var shells = map[string]string{
	"bash": "usr/share/bash-completion/completions/larder",
	"zsh":  "usr/share/zsh/vendor-completions/_larder",
	"fish": "usr/share/fish/vendor_completions.d/larder.fish",
}

// monitoring are the files of docs/monitoring that an operator installs: the alert rules for Prometheus, and Grafana's dashboard.
var monitoring = []string{"alerts.yaml", "dashboard.json"}

// completions has the program that is for this machine write them.
func (r *release) completions(ctx context.Context) error {
	program := filepath.Join(r.work, "here")
	if err := r.run(ctx, nil, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags, "-o", program, "./cmd/larder"); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.work, "completion"), 0o755); err != nil {
		return err
	}
	for shell := range shells {
		text, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(r.work, "completion", "larder."+shell), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command in the repository.
func (r *release) run(ctx context.Context, environment []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), environment...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOWORK=off")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.Bytes())
	}
	return nil
}

// checksums are of all that was made, in the form that sha256sum reads.
func (r *release) checksums(context.Context) error {
	var sums strings.Builder
	slices.Sort(r.made)
	for _, name := range r.made {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), name)
		fmt.Printf("%s (%.1f MB)\n", name, float64(len(data))/1e6)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
