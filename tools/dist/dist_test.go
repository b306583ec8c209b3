package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestDebianVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3~rc.1",
		"0.0.0-20260102150405-0123456789ab":       "0.0.0~20260102150405.0123456789ab",
		"0.0.0-20260102150405-0123456789ab+dirty": "0.0.0~20260102150405.0123456789ab+dirty",
	} {
		if got := (&release{version: version}).debianVersion(); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestRefusesOtherFolders(t *testing.T) {
	r := release{out: t.TempDir()}
	precious := filepath.Join(r.out, "thesis.tex")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.clear(); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error("the file of somebody else is gone")
	}
}

// made is the folder of a release that make dist has made.
func made(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("RELEASE_FOLDER")
	if dir == "" {
		t.Skip("RELEASE_FOLDER names no release; make dist-test does")
	}
	return dir
}

// one is the only file of the release with that name.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(made(t), pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip("there is no " + program)
	}
}

// run runs a command that has to succeed, and returns what it says.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, text)
	}
	return string(text)
}

func TestChecksums(t *testing.T) {
	needs(t, "sha256sum")
	said := run(t, made(t), "sha256sum", "-c", "--strict", "SHA256SUMS")
	if n := strings.Count(said, ": OK"); n != 8 {
		t.Errorf("%d files are in order, want 8:\n%s", n, said)
	}
}

// serves runs a program until it serves, asks it whether it lives, and has it end.
func serves(t *testing.T, cmd *exec.Cmd, ready string) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var address []byte
	for end := time.Now().Add(2 * time.Minute); len(address) == 0; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, &said)
		default:
		}
		if time.Now().After(end) {
			cmd.Process.Kill()
			t.Fatalf("it did not serve within two minutes\n%s", &said)
		}
		address, _ = os.ReadFile(ready)
	}
	answer, err := http.Get(strings.TrimSpace(string(address)) + "/health")
	if err != nil {
		t.Error(err)
	} else {
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("/health answers %s", answer.Status)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v\n%s", err, &said)
	}
}

func TestArchive(t *testing.T) {
	version := regexp.MustCompile(`^larder v\S+, commit [0-9a-f]{12} of \S+Z \(go\S+, ` + runtime.GOOS + "/" + runtime.GOARCH + `\)\n$`)
	dir := t.TempDir()
	unpack(t, one(t, "larder_*_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"), dir)
	found, _ := filepath.Glob(filepath.Join(dir, "larder_*"))
	if len(found) != 1 {
		t.Fatalf("%q in the archive", found)
	}
	for _, name := range []string{"LICENSE", "man/larder-up.1", "completion/larder.bash", "completion/larder.zsh", "completion/larder.fish", "monitoring/alerts.yaml", "monitoring/dashboard.json"} {
		if info, err := os.Stat(filepath.Join(found[0], name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	program := filepath.Join(found[0], "larder")
	if said := run(t, dir, program, "version"); !version.MatchString(said) {
		t.Errorf("it says that it is %q", said)
	}
	ready := filepath.Join(dir, "ready")
	serves(t, exec.Command(program, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--private-listen", "off", "--ready-file", ready), ready)
}

// unpack unpacks a .tar or .tar.gz without the help of a program.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if z, err := gzip.NewReader(f); err == nil {
		r = z
	} else if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
			var data []byte
			if data, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(name, data, os.FileMode(h.Mode).Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(name, h.Uid, h.Gid); err != nil {
				t.Fatal(err)
			}
		}
		if h.Mode&0o1000 != 0 {
			if err := os.Chmod(name, 0o777|os.ModeSticky); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestImage unpacks the image and runs it as an engine would, in its own root folder and as its own user.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	unpack(t, one(t, "larder_*_oci.tar"), dir)
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	read := func(name string, to any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	blob := func(digest string) string {
		t.Helper()
		name := "blobs/" + strings.Replace(digest, ":", "/", 1)
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || fmt.Sprintf("sha256:%x", sha256.Sum256(data)) != digest {
			t.Fatalf("%s is not what its name says: %v", name, err)
		}
		return name
	}
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	if len(index.Manifests) != 2 {
		t.Fatalf("there are images for %+v", index.Manifests)
	}
	for _, m := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		read(blob(m.Digest), &manifest)
		var config struct {
			Architecture string
			Config       struct {
				User            string
				Entrypoint, Cmd []string
				Env             []string
			}
		}
		read(blob(manifest.Config.Digest), &config)
		if config.Config.User != "65532:65532" || config.Architecture != m.Platform.Architecture || len(manifest.Layers) != 1 {
			t.Errorf("%+v, %+v", config, manifest)
		}
		if runtime.GOOS != "linux" || config.Architecture != runtime.GOARCH {
			continue
		}
		root := t.TempDir()
		unpack(t, filepath.Join(dir, blob(manifest.Layers[0].Digest)), root)
		if os.Geteuid() != 0 {
			t.Log("not root: the image is unpacked, but not run in its own root folder")
			continue
		}
		for _, d := range []string{root, filepath.Dir(root)} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(config.Config.Entrypoint[0], "serve", "--listen", "127.0.0.1:0", "--private-listen", "off", "--ready-file", "/tmp/ready")
		cmd.Path, cmd.Dir = config.Config.Entrypoint[0], "/var/lib/larder"
		cmd.Env = config.Config.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
		serves(t, cmd, filepath.Join(root, "tmp/ready"))
		if _, err := os.Stat(filepath.Join(root, "var/lib/larder/keys/log.key")); err != nil {
			t.Errorf("the keys are not where they outlive the container: %v", err)
		}
	}
}

// TestUnits has systemd say what it thinks of the units.
func TestUnits(t *testing.T) {
	needs(t, "systemd-analyze")
	units := t.TempDir()
	for _, name := range []string{"larder.service", "larder.socket", "larder-private.socket"} {
		text, err := os.ReadFile(filepath.Join("debian", name))
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte("ExecStart=/usr/bin/larder"), []byte("ExecStart=/bin/true")) // Larder is not installed here
		if err := os.WriteFile(filepath.Join(units, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", "larder.service", "larder.socket", "larder-private.socket")
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+units+":")
	said, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, "larder") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil {
		t.Logf("systemd-analyze verify: %v\n%s", err, said)
	}
	security := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", filepath.Join(units, "larder.service"))
	said, err = security.CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level for larder.service: ([0-9.]+)`).FindSubmatch(said)
	if level == nil {
		t.Fatalf("systemd-analyze security: %v\n%s", err, said)
	}
	t.Logf("exposure level %s", level[1])
	if err != nil {
		t.Errorf("it is over 2.5:\n%s", said)
	}
}

// TestPackage installs the package into a system of its own, upgrades it, and removes it with and without data.
func TestPackage(t *testing.T) {
	for _, program := range []string{"dpkg", "dpkg-deb", "systemctl", "systemd-sysusers"} {
		needs(t, program)
	}
	if os.Geteuid() != 0 {
		t.Skip("dpkg needs root")
	}
	architecture := strings.TrimSpace(run(t, ".", "dpkg", "--print-architecture"))
	pkg := one(t, "larder_*_"+architecture+".deb")
	system := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "var/lib", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(system, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available", "etc/passwd", "etc/group"} {
		if err := os.WriteFile(filepath.Join(system, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) string {
		t.Helper()
		return run(t, ".", "dpkg", append([]string{"--root=" + system, "--force-script-chrootless", "--force-depends", "--force-confdef"}, args...)...)
	}
	at := func(name string) string { return filepath.Join(system, name) }
	is := func(name string, want bool) {
		t.Helper()
		if _, err := os.Lstat(at(name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
	wanted := []string{"etc/systemd/system/sockets.target.wants/larder.socket", "etc/systemd/system/multi-user.target.wants/larder.service"}

	dpkg("--install", pkg)
	if said := run(t, ".", at("usr/bin/larder"), "version"); !strings.HasPrefix(said, "larder v") {
		t.Errorf("it says %q", said)
	}
	for _, name := range append(wanted, "lib/systemd/system/larder.service", "usr/share/man/man1/larder-up.1.gz", "usr/share/bash-completion/completions/larder",
		"usr/share/larder/monitoring/alerts.yaml", "usr/share/larder/monitoring/dashboard.json") {
		is(name, true)
	}
	if passwd, _ := os.ReadFile(at("etc/passwd")); !strings.Contains(string(passwd), "larder:") {
		t.Errorf("there is no user: %q", passwd)
	}
	// The operator works with it.
	changed := []byte("data: /var/lib/larder/data\nname: Ours\n")
	for name, text := range map[string][]byte{"etc/larder/larder.yaml": changed, "var/lib/larder/data/store/x": {}, "var/lib/larder/keys/log.key": {}} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, ".", "systemctl", "--root="+system, "disable", "larder.socket")

	dpkg("--install", renumbered(t, pkg))
	if text, _ := os.ReadFile(at("etc/larder/larder.yaml")); !bytes.Equal(text, changed) {
		t.Errorf("an upgrade changed the settings: %q", text)
	}
	is(wanted[0], false) // what the operator has turned off stays off
	is("var/lib/larder/keys/log.key", true)

	dpkg("--remove", "larder")
	is("usr/bin/larder", false)
	is(wanted[1], false)
	is("etc/larder/larder.yaml", true)
	is("var/lib/larder/keys/log.key", true)

	dpkg("--install", pkg)
	dpkg("--purge", "larder")
	is("etc/larder/larder.yaml", false)
	is("var/lib/larder", false)
}

// renumbered makes a package of a later version out of pkg.
func renumbered(t *testing.T, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, ".", "dpkg-deb", "--raw-extract", pkg, dir)
	control := filepath.Join(dir, "DEBIAN/control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^Version: .*$`).ReplaceAll(text, []byte("Version: 99.0.0"))
	if err := os.WriteFile(control, text, 0o644); err != nil {
		t.Fatal(err)
	}
	later := filepath.Join(t.TempDir(), "later.deb")
	run(t, ".", "dpkg-deb", "--build", "--root-owner-group", "-Znone", dir, later)
	return later
}

// TestReproducible makes the release once more, in another folder and of another clone, and compares.
func TestReproducible(t *testing.T) {
	needs(t, "git")
	first, err := os.ReadFile(filepath.Join(made(t), "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(first), "+dirty") {
		t.Skip("files were changed since the last commit, so a clone is not the same")
	}
	clone := filepath.Join(t.TempDir(), "somewhere", "else")
	run(t, ".", "git", "clone", "--quiet", "--no-hardlinks", "../..", clone)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "dist")
	cmd.Dir = clone
	for _, pair := range os.Environ() { // make's own would name the other folder
		if !strings.HasPrefix(pair, "MAKE") && !strings.HasPrefix(pair, "MFLAGS") && !strings.HasPrefix(pair, "LARDER_") && !strings.HasPrefix(pair, "GOFLAGS=") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make dist: %v\n%s", err, said)
	}
	second, err := os.ReadFile(filepath.Join(clone, "dist/SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("the same commit made other bytes:\n%s\n%s", first, second)
	}
}
