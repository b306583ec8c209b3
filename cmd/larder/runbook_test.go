package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestRunbook runs the commands of docs/runbook.md as they are written there, on two releases, and looks whether they do what
// the page says. Only names are others: of folders, of machines and of addresses.
func TestRunbook(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	blocks := commandsOf(t, "runbook.md")
	registry := npmtest.New(t)
	environ := registry.Environ(t.TempDir())
	for i, version := range []string{"1.0.0", "1.1.0"} {
		registry.Add("demo", version, time.Date(2024, 5, 17+i, 8, 30, 0, 0, time.UTC), map[string]string{"small.txt": "demo " + version})
	}
	base := &drill{T: t, dir: t.TempDir(), environ: environ, blocks: blocks["# Runbook"]}
	base.write("catalogue/demo.json", faultPackage)
	for _, dir := range []string{"elsewhere", "vault", "home"} {
		base.must(os.Mkdir(base.in(dir), 0o700))
	}
	base.up()
	base.until(200, "1.1.0")
	base.run(0, 0, "0 wrong")
	base.end()

	const file = "/ajax/libs/demo/1.0.0/small.txt"
	for title, do := range map[string]func(*drill){
		"Disk lost": func(d *drill) {
			mirror := d.copy("another machine")
			mirror.up()
			d.mirror = mirror.address
			d.must(os.RemoveAll(d.in("data")))
			d.up()
			d.said("is not written to: it holds no store")
			d.until(503, "1.0.0")
			d.run(0, 0, "Built a new store", "0 wrong")
			d.until(200, "1.0.0")
			// No copy has the entries that were signed after the backup.
			d.shell(0, "larder withdraw demo 1.1.0 --reason 'a test'", "is withdrawn")
			d.end()
			d.must(os.RemoveAll(d.in("data")))
			d.shell(1, "larder repair --from /mnt/elsewhere/larder", "were signed, and no source has them")
			d.run(1, 0, "It goes on as ")
			d.up()
			d.until(200, "1.0.0")
		},
		"Key lost": func(d *drill) {
			d.must(os.Remove(d.in("keys/log.key")))
			d.up()
			d.said("there is a signed checkpoint in")
			d.said("but no log.key; put the key back")
			d.until(200, "1.0.0")
			d.end()
			d.run(0, 0)
			d.up()
			d.until(200, "1.0.0")
			d.end()
			d.run(1, 0)
			d.up()
			d.until(200, "1.0.0")
			d.said("another key signed this log before")
		},
		"Key stolen": func(d *drill) {
			stolen := d.copy("the thief's machine")
			d.run(0, 0, "Created the root key", "version 1\n", "key ")
			d.up()
			const pinned = "larder verify --root /mnt/vault/offline/root.pub --known-logs pinned "
			d.shell(0, pinned+d.address+file, "proven")
			d.run(1, 0, "is signed with a new key", "version 2\n", " ends ")
			d.shell(0, "larder verify --key /mnt/elsewhere/log.pub --known-logs known "+d.address+file, "proven") // led to the new key
			d.end()
			d.up()
			d.shell(0, "larder verify --key keys/log.pub --known-logs others "+d.address+file, "proven")
			d.shell(0, pinned+d.address+file, "proven")
			d.run(2, 0, "proven", "0 wrong")
			// The thief shows a log that the stolen key has signed since, with the list of before.
			d.end()
			stolen.up()
			stolen.shell(0, "larder withdraw demo 1.1.0 --reason 'a thief'; larder withdraw --undo demo 1.1.0 --reason 'a thief'; larder withdraw demo 1.1.0 --reason 'a thief'")
			stolen.shell(0, "larder verify --key "+d.in("elsewhere/log.pub")+" --known-logs new "+stolen.address+file, "proven")
			stolen.shell(6, "larder verify --root "+d.in("vault/offline/root.pub")+" --known-logs "+d.in("pinned")+" "+stolen.address+file, "differs: ")
		},
		"Bad release withdrawn": func(d *drill) {
			d.up()
			d.until(200, "1.0.0")
			d.run(0, 0, "demo 1.0.0 is withdrawn", "URL under "+d.address+"/ajax/libs/demo/1.0.0/", "purge the tag ver~demo~1.0.0")
			d.until(410, "1.0.0")
			d.run(1, 0, `"requests":`, "withdrawn")
			d.until(200, "1.0.0")
		},
		"Log forked": func(d *drill) {
			other := d.copy("a second machine")
			d.up()
			d.shell(0, "larder withdraw demo 1.0.0 --reason 'here'; larder verify --key /mnt/elsewhere/log.pub "+d.address+"/ajax/libs/demo/1.1.0/small.txt; larder fsck --seen seen", "proven")
			other.up()
			other.shell(0, "larder withdraw demo 1.0.0 --reason 'there'; larder withdraw --undo demo 1.0.0 --reason 'there'")
			said := d.shell(7, "larder verify --key /mnt/elsewhere/log.pub "+other.address+"/ajax/libs/demo/1.1.0/small.txt", "the log has forked", "larder verify --evidence")
			evidence := regexp.MustCompile(`\S*fork-[0-9a-f]+\.json`).FindString(said)
			d.names = []string{"--key log.pub", "--key " + d.in("elsewhere/log.pub"), "fork-418214bd6a6dc892.json", strings.Replace(evidence, "~", d.in("home"), 1)}
			d.run(0, 0)
			d.run(1, 7, "fork")
			d.run(2, 0, "0 wrong")
			d.shell(0, "larder fsck", "0 wrong")
			d.end()
			d.must(os.RemoveAll(d.in("data")))
			other.end()
			d.must(os.RemoveAll(d.in("keys")))
			d.must(errors.Join(os.Mkdir(d.in("data"), 0o700), os.Mkdir(d.in("keys"), 0o700)))
			d.must(errors.Join(copyAll(other.in("data"), d.in("data")), copyAll(other.in("keys"), d.in("keys")))) // not the log that was seen
			d.shell(1, "larder fsck --seen seen")
		},
		"Registry away": func(d *drill) {
			d.env = []string{"npm_config_registry=http://127.0.0.1:1/"}
			d.up("--interval", "1s")
			d.until(200, "1.0.0")
			waitForProcess(d.T, "that the status tells", func() bool {
				said, _ := d.command("larder status").CombinedOutput()
				return bytes.Contains(said, []byte("can't be asked"))
			})
			d.run(0, 0, "registry: http://127.0.0.1:1/: ", "npm config set registry", "can't be asked")
			d.shell(1, "larder add demo@1.2.0", "connection refused; `larder doctor` says what helps")
			d.shell(1, "larder add --retry demo", "demo: no release was refused or has failed; `larder add demo` gets those that are new")
			d.write("dist/small.txt", "demo 1.2.0")
			d.run(1, 0, "demo 1.2.0: published")
			d.until(200, "1.2.0")
		},
		"Certificate expired": func(d *drill) {
			if _, err := exec.LookPath("openssl"); err != nil {
				d.Skip(err)
			}
			d.must(os.Mkdir(d.in("etc"), 0o700))
			cert, key := d.in("etc/cert.pem"), d.in("etc/key.pem")
			d.must(makeCertificateFor(cert, key, time.Now().Add(-time.Hour)))
			d.up("--tls-cert", cert, "--tls-key", key)
			ends := func() time.Time {
				conn, err := tls.Dial("tcp", strings.TrimPrefix(d.address, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // which certificate it has is the question
				if err != nil {
					return time.Time{}
				}
				defer conn.Close()
				return conn.ConnectionState().PeerCertificates[0].NotAfter
			}
			if !ends().Before(time.Now()) {
				d.Error("it does not serve with the expired certificate")
			}
			d.run(0, 0, "it has expired at ", "notAfter=")
			d.must(errors.Join(makeCertificateFor(cert+".new", key+".new", time.Now().Add(time.Hour)), os.Rename(key+".new", key), os.Rename(cert+".new", cert)))
			waitFor(d.T, "the new certificate", func() bool { return ends().After(time.Now()) })
			d.said("read a new certificate")
		},
		"Process gone": func(d *drill) {
			d.write("bin/systemctl", "#!/bin/sh\n")
			d.write("bin/journalctl", "#!/bin/sh\n")
			d.run(0, 0)
			d.healthy()
		},
		"Store damaged": func(d *drill) {
			d.must(flipFile(d.in("data"), "demo", "1.0.0", "small.txt"))
			d.shell(1, "larder fsck --all", "1 wrong")
			d.run(0, 0, "deep fsck: the last one", "1 thing is wrong", "larder repair", "0 wrong")
			d.healthy()
		},
		"Publishing stopped": func(d *drill) {
			key := d.read("keys/log.key")
			d.write("keys/log.key", "damaged")
			d.up()
			d.until(200, "1.0.0")
			d.run(0, 0, "the log's key cannot be used", "cp /PATH/TO/COPY/log.key")
			d.write("keys/log.key", string(key))
			waitForProcess(d.T, "that it publishes again", func() bool {
				said, _ := d.command("larder doctor").CombinedOutput()
				return !bytes.Contains(said, []byte("log.key"))
			})
		},
		"Log not signed": func(d *drill) {
			d.shell(0, "larder withdraw demo 1.0.0 --reason 'a test' --keys others", "the log is not signed")
			d.run(0, 0, "1 of its 8 entries are not signed", "larder up --data")
			d.up()
			d.until(410, "1.0.0")
			d.end()
			d.healthy()
		},
		"Cache not purged": func(d *drill) {
			d.up("--purge-hook", "http://127.0.0.1:1/", "--asset-base", "https://cdn.example.com")
			d.shell(0, "larder withdraw demo 1.0.0 --reason 'a test'")
			d.waitForDoctor("", "purge hook")
			d.run(0, 0, "purge hook: demo 1.0.0 is withdrawn, but a cache in front may still have it", "larder reload")
		},
		"Catalogue unreadable": func(d *drill) {
			text := d.read("catalogue/demo.json")
			d.up()
			d.until(200, "1.0.0")
			d.write("catalogue/demo.json", "{")
			d.shell(0, "larder reload")
			d.waitForDoctor("", "catalogue: ")
			d.run(0, 1, "a file of the catalogue is refused", "larder lint ")
			d.write("catalogue/demo.json", string(text))
			d.run(1, 0)
			waitForProcess(d.T, "that the catalogue is read again", func() bool {
				said, _ := d.command("larder doctor").CombinedOutput()
				return !bytes.Contains(said, []byte("catalogue: "))
			})
		},
		"Backup old": func(d *drill) {
			d.write("data/upkeep/backup.json", `{"succeeded": "2025-01-02T03:04:05Z"}`)
			d.run(0, 0, "backup: the last one is ", "Backed up ")
			d.healthy()
		},
		"Too much load": func(d *drill) {
			d.up()
			d.run(0, 0, "downloads")
		},
		"Mirror behind": func(d *drill) {
			d.up()
			mirror := d.command("exec larder mirror http://127.0.0.1:8080 --data mirror --listen 127.0.0.1:0 --private-listen off --ready-file mirror-ready")
			startSaying(d.T, mirror, "Larder serves ")
			d.waitForDoctor("--data mirror", "deep fsck: there was none yet")
			d.end()
			d.waitForDoctor("--data mirror", "source: following ")
			d.run(0, 0, "source: following ", "larder doctor # at the source")
		},
		"Log not pushed": func(d *drill) {
			d.env = []string{"LARDER_LOG_REPOSITORY=example/logs", "GITHUB_TOKEN=ghp_token", "LARDER_GITHUB_URL=http://127.0.0.1:1"}
			d.up()
			d.waitForDoctor("", "log push: ")
			d.run(0, 0, "log push: pushing the log to example/logs@main fails: ", "releases published")
		},
		"Node behind": func(d *drill) {
			d.up("--bucket", "file://"+d.in("bucket"))
			d.until(200, "1.0.0")
			d.shell(0, "mkdir -p two/keys; cp keys/log.pub keys/checkpoint keys/cluster.key two/keys")
			follower := d.command("exec larder serve --data two/data --bucket file://" + d.in("bucket") + " --node-url https://127.0.0.1:0 --asset-base https://cdn.example.com")
			startSaying(d.T, follower, "Larder serves ")
			d.waitForDoctor("", "node settings: ")
			d.run(0, 0, "has other settings: asset-base", "ROLE", "follower")
		},
		"Clock wrong": func(d *drill) {
			d.write("bin/timedatectl", "#!/bin/sh\n") // a clock cannot be wrong for one process
			d.up()
			d.run(0, 0, "releases published")
		},
		"Machine replaced": func(d *drill) {
			d.write("bin/systemctl", "#!/bin/sh\n")
			d.write("bin/rsync", "#!/bin/sh\nexec cp -a \"$2\" \"$3\" \"${4#*:}\"\n")
			d.up()
			d.until(200, "1.0.0")
			d.end()
			d.must(os.Mkdir(d.in("there"), 0o700))
			d.names = []string{"/var/lib/larder", d.in("there"), "--key log.pub", "--key " + d.in("elsewhere/log.pub")}
			d.run(0, 0)
			d.up("--data", d.in("there/data"), "--keys", d.in("there/keys"))
			d.names = append(d.names, "https://cdn.example.com/ajax/libs/demo/1.0.0/demo.js", d.address+file)
			d.run(1, 0, "0 wrong", "proven")
		},
		"Version rolled back": func(d *drill) {
			d.up()
			d.run(0, 0, "Backed up ", "larder ", "0 wrong")
			d.end()
			d.must(os.RemoveAll(d.in("data")))
			d.run(1, 0, "Built a new store")
			d.up()
			d.until(200, "1.0.0")
		},
	} {
		commands := blocks[title]
		if len(commands) == 0 {
			t.Errorf("the runbook has no section %q with commands", title)
		}
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			d := &drill{T: t, dir: t.TempDir(), environ: environ, blocks: commands}
			d.must(copyAll(base.dir, d.dir))
			do(d)
			if d.done != len(d.blocks) {
				t.Errorf("%d of %d blocks of commands were run", d.done, len(d.blocks))
			}
		})
		delete(blocks, title)
	}
	delete(blocks, "# Runbook")
	for title := range blocks {
		t.Errorf("nothing runs the commands of %q", title)
	}
}

// TestAlertsLinkToRunbook checks that each alert has the address of an entry of the runbook that starts with larder doctor. TestRunbook
// runs the entry.
func TestAlertsLinkToRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string][]string{}
	for title, blocks := range commandsOf(t, "runbook.md") {
		entries[strings.ReplaceAll(strings.ToLower(title), " ", "-")] = blocks
	}
	alerts := strings.Split(string(text), "- alert: ")[1:]
	for _, alert := range alerts {
		name, _, _ := strings.Cut(alert, "\n")
		link := regexp.MustCompile(`runbook_url: 'https://github.com/larder-cdn/larder/blob/main/docs/runbook.md#([a-z-]+)'`).FindStringSubmatch(alert)
		if link == nil {
			t.Errorf("%s has no runbook_url", name)
		} else if blocks := entries[link[1]]; len(blocks) == 0 || !strings.HasPrefix(blocks[0], "larder doctor") {
			t.Errorf("%s: the entry %s of the runbook does not start with larder doctor: %q", name, link[1], blocks)
		}
	}
	if len(alerts) < 25 {
		t.Errorf("%d alerts were found", len(alerts))
	}
}

// commandsOf returns the blocks of commands of a page of the docs, by their section.
func commandsOf(t *testing.T, page string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	for _, section := range strings.Split(string(text), "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(rest, -1) {
			blocks[title] = append(blocks[title], m[1])
		}
	}
	return blocks
}

// A drill is one section of the runbook, in a folder of its own.
type drill struct {
	*testing.T
	dir     string
	environ []string // the environment of all drills
	blocks  []string
	done    int // how many of them were run
	names   []string
	address string // of the process that runs
	mirror  string
	env     []string // more variables, of this one
	stop    func()
}

func (d *drill) in(name string) string { return filepath.Join(d.dir, name) }

func (d *drill) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *drill) write(name, text string) {
	d.Helper()
	d.must(os.MkdirAll(filepath.Dir(d.in(name)), 0o700))
	d.must(writeProgram(d.in(name), text)) // some are programs
}

func (d *drill) read(name string) []byte {
	d.Helper()
	text, err := os.ReadFile(d.in(name))
	d.must(err)
	return text
}

// copy is another machine with the same data and keys.
func (d *drill) copy(name string) *drill {
	d.Helper()
	other := &drill{T: d.T, dir: d.TempDir(), environ: d.environ}
	d.must(copyAll(d.dir, other.dir))
	return other
}

// copyAll copies what is in a folder, with its permissions, which keys must have.
func copyAll(from, to string) error { return exec.Command("cp", "-a", from+"/.", to).Run() }

// command is a line for the shell, in the folder, with the names of the page replaced.
func (d *drill) command(script string) *exec.Cmd {
	names := append(d.names, "/mnt/elsewhere", d.in("elsewhere"), "/mnt/vault", d.in("vault"), "/etc/larder", d.in("etc"),
		"http://127.0.0.1:8080", d.address, "https://mirror.example.com", d.mirror)
	cmd := exec.Command("sh", "-ec", strings.NewReplacer(names...).Replace(script))
	cmd.Dir = d.dir
	cmd.Env = append(slices.Clone(d.environ), "PATH="+d.in("bin")+":"+os.Getenv("PATH"), "HOME="+d.in("home"), "XDG_CONFIG_HOME="+d.in("home/.config"),
		"LARDER_LISTEN=127.0.0.1:0", "LARDER_PRIVATE_LISTEN=off", "LARDER_CATALOGUE="+d.in("catalogue"))
	cmd.Env = append(cmd.Env, d.env...)
	return cmd
}

// shell runs commands that have to end with this code and to say all of this.
func (d *drill) shell(code int, script string, says ...string) string {
	d.Helper()
	said, err := d.command(script).CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == code {
		err = nil
	} else if err == nil && code != 0 {
		err = fmt.Errorf("exit code 0, want %d", code)
	}
	if err != nil {
		d.Fatalf("%s: %v\n%s", script, err, said)
	}
	for _, want := range says {
		if !bytes.Contains(said, []byte(want)) {
			d.Errorf("%s: it does not say %q, but\n%s", script, want, said)
		}
	}
	return string(said)
}

// healthy wants larder doctor to find nothing wrong.
func (d *drill) healthy() {
	d.Helper()
	said, err := d.command("larder doctor --json").Output()
	if wrong := findingsIn(string(said)); len(wrong) > 0 {
		d.Errorf("larder doctor: %v: %q", err, wrong)
	}
}

// run runs the block of commands with that number, but for those that start the process.
func (d *drill) run(n, code int, says ...string) {
	d.Helper()
	if n >= len(d.blocks) {
		d.Fatalf("there are %d blocks of commands", len(d.blocks))
	}
	d.done++
	script := regexp.MustCompile(`(?m)^larder up.*\n`).ReplaceAllString(d.blocks[n], "")
	script = regexp.MustCompile(`(?m)^(larder doctor[^#\n]*)(#.*)?$`).ReplaceAllString(script, "$1 || [ $$? = 1 ]") // it may find something
	d.shell(code, script, says...)
}

// up starts the process, whose log goes to a file.
func (d *drill) up(more ...string) {
	d.Helper()
	ready := d.in("ready")
	more = append(more, "--ready-file", ready)
	cmd := d.command(`exec 2>>log; exec larder up "$@"`)
	cmd.Args = append(cmd.Args, append([]string{"larder"}, more...)...)
	d.Cleanup(func() {
		if d.Failed() {
			d.Logf("the log: %s", d.read("log"))
		}
	})
	_, d.stop = startSaying(d.T, cmd, "Larder serves ")
	waitFor(d.T, "the ready file", func() bool {
		text, err := os.ReadFile(ready)
		d.address = strings.TrimSpace(string(text))
		return err == nil
	})
}

func (d *drill) end() {
	d.Helper()
	d.stop()
}

// waitForDoctor returns when larder doctor with these flags says this.
func (d *drill) waitForDoctor(flags, says string) {
	d.Helper()
	waitForProcess(d.T, "that larder doctor says "+says, func() bool {
		said, _ := d.command("larder doctor " + flags).CombinedOutput()
		return bytes.Contains(said, []byte(says))
	})
}

// said wants the log of the process to have this.
func (d *drill) said(want string) {
	d.Helper()
	waitFor(d.T, "that the log has "+want, func() bool { return bytes.Contains(d.read("log"), []byte(want)) })
}

// until returns when a file of that version is answered so.
func (d *drill) until(status int, version string) {
	d.Helper()
	waitFor(d.T, fmt.Sprintf("%d for a file of %s", status, version), func() bool {
		answer, err := http.Get(d.address + "/ajax/libs/demo/" + version + "/small.txt")
		if err != nil {
			return false // it may be about to begin again
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode == status && (status != 200 || string(body) == "demo "+version)
	})
}
