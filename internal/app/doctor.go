package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Finding is one thing that `larder doctor` has found wrong, and its JSON form.
type Finding struct {
	Check string `json:"check"` // what was checked, such as "disk"
	Cause string `json:"cause"` // what is wrong, in a line
	Fix   string `json:"fix"`   // the shell command that repairs it; capitals stand for names, and # begins what to do before or after it
}

// OpDoctor examines a process and its data folder, or a data folder without a process, and returns what is wrong, nil for nothing.
const OpDoctor Operation[struct{}, any, []Finding] = "doctor"

// An examination collects findings.
type examination struct {
	settings *settings.Settings
	data     string // the absolute path of the data folder, for a shell: commands are run in another working directory than the process's
	now      time.Time
	findings []Finding
}

// report adds a finding: check names what was checked, fix is a shell command that repairs it, and cause says what is wrong. The
// cause is cut to one line.
func (e *examination) report(check, fix, cause string) {
	cause, _, _ = strings.Cut(cause, "\n")
	e.findings = append(e.findings, Finding{check, cause, fix})
}

// reportProblem adds a finding as report does, with prefix in front of problem. It does nothing if problem is "".
func (e *examination) reportProblem(check, fix, prefix, problem string) {
	if problem != "" {
		e.report(check, fix, prefix+problem)
	}
}

// newExamination returns an examination, without findings, of the data folder of the settings.
func newExamination(s *settings.Settings) *examination {
	return &examination{settings: s, data: quoteForShell(settings.Absolute(s.Data)), now: time.Now()}
}

// quoteForShell returns text as one word of a shell command, in single quotes if necessary.
func quoteForShell(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%,="
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// command returns a shell command: larder, the subcommand name with its arguments, and --data with the examined data folder.
func (e *examination) command(name string) string { return "larder " + name + " --data " + e.data }

// Doctor examines the process that runs on the data folder of the settings or, if none runs, the folder. It returns what is
// wrong, nil for nothing. A folder or a process that cannot be reached is a finding. The error is that of the examination, or
// that ctx has ended.
func Doctor(ctx context.Context, s *settings.Settings, logger *slog.Logger) ([]Finding, error) {
	client, _, err := Reach(ctx, s.Data, func() (interface{ Client() *Client }, error) { return OpenReader(s, true, logger) })
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		if short := openingError(s, kvstore.ErrNoStore); checkStoreExists(s) != nil && errors.As(short, new(*Shortfall)) {
			err = short // the store is lost, and not new
		}
		e := newExamination(s)
		e.reportUnopened(err)
		e.examineFolders()
		e.examineCertificateFiles()
		return e.findings, nil
	}
	findings, err := OpDoctor.Ask(ctx, client, struct{}{}, nil)
	return findings, errors.Join(err, client.Close())
}

// repairCommand returns the larder repair command for the store, with the source that the settings name: the bucket, else the
// backup, else the word SOURCE.
func (e *examination) repairCommand() string {
	source := quoteForShell(cmp.Or(e.settings.Backup, "SOURCE"))
	if e.settings.Bucket != "" {
		source = FromBucket
	}
	return e.command("repair") + " --from " + source
}

// reportUnopened adds a finding with err, because of which the data folder, or the process that has it open, cannot be reached.
func (e *examination) reportUnopened(err error) {
	fix := e.command("up")
	switch {
	case errors.As(err, new(*Shortfall)):
		fix = e.repairCommand()
	case errors.Is(err, fs.ErrPermission):
		fix = "sudo -u OWNER " + e.command("doctor") + " # OWNER runs Larder"
	case errors.Is(err, kvstore.ErrLocked):
		fix = e.command("status")
	}
	e.report("data folder", fix, err.Error())
}

// examineFolder examines an open data folder that no process serves, the bucket of the settings, and the upstreams of its
// packages, to which it sends requests. It returns what is wrong, nil for nothing.
func (r *Reader) examineFolder(ctx context.Context, _ struct{}) ([]Finding, error) {
	e := newExamination(r.settings)
	status, err := r.readStatus("")
	if err != nil {
		return nil, err
	}
	e.examineStatus(status)
	e.examineSigned(r)
	e.examineCertificateFiles()
	e.examineStore(r)
	e.examineBucket(ctx)
	e.examineUpstreams(ctx, r, status)
	return e.findings, nil
}

// examineProcess examines this process and its data folder, and runs the examinations that the parts of its role have
// registered. status is that of the process. It returns what is wrong, nil for nothing. If a registry or GitHub does not
// respond, it leaves out the packages that cannot be polled.
func (r *roleRun) examineProcess(ctx context.Context, folder *Reader, status *Status) []Finding {
	e := newExamination(r.settings)
	e.examineStatus(status)
	if r.settings.MemoryLacking > 0 {
		e.report("memory", e.command("up --cache 64MiB --memory 128MiB")+" # after stopping the process; or raise the limit of the control group", fmt.Sprintf(
			"the limit of %s is %s less than the settings need", formatSize(r.settings.MemoryLimit), formatSize(r.settings.MemoryLacking)))
	}
	e.examineStore(folder)
	for _, examine := range r.console.examinations {
		examine(ctx, e)
	}
	if slices.ContainsFunc(e.findings, func(f Finding) bool { return f.Check == "registry" || f.Check == "GitHub" }) {
		e.findings = slices.DeleteFunc(e.findings, func(f Finding) bool { return f.Check == "upstream" }) // which is the same cause
	}
	return e.findings
}

// examineStatus adds a finding for each problem that the status of a process or folder has.
func (e *examination) examineStatus(s *Status) {
	if s.Degraded != "" {
		fix := e.repairCommand()
		if strings.Contains(s.Degraded, "publishing is off") { // because of the key, as checkLogKey says
			fix = "cp /PATH/TO/COPY/log.key " + quoteForShell(e.settings.KeyFolder())
		}
		e.report("store", fix, s.Degraded)
	}
	e.reportProblem("store", e.command("fsck --deep"), "the store lacks the last changes that it had, none of which was signed: ", s.Behind)
	if s.Process != nil {
		e.reportProblem("configuration", e.command("reload"), "the last upgrade or reload failed: ", s.Process.Failed)
	}
	if s.Unsigned != "" {
		fix := "cp /PATH/TO/COPY/log.key " + quoteForShell(e.settings.KeyFolder()) + " # if it is lost: larder log rotate-key"
		if strings.Contains(s.Unsigned, "witness") {
			fix = e.command("reload") + " # after correcting witness"
		}
		e.report("log", fix, "the newest entries are not signed: "+s.Unsigned)
	}
	for _, dispute := range s.Disputes {
		e.report("log", e.command("fsck --all")+" # then docs/runbook.md, Log forked", dispute)
	}
	for _, lack := range s.Unprotected {
		e.report("sandbox", "uname -r # Linux 6.7 or later has all of it", "child processes that read files from upstream go without "+lack)
	}
	for _, c := range s.Certificates {
		e.reportProblem("certificate",
			e.command("reload")+" # after renewing the files; openssl x509 -enddate -noout -in FILE says until when they are valid",
			c.Domain+": ", c.Problem)
	}
	e.examineUpstreamStatus(s)
	for _, p := range s.Purges {
		e.reportProblem("purge hook", e.command("reload")+" # after correcting purge-hook",
			p.Package+" "+p.Version+" is withdrawn, but a cache in front may still have it: ", p.Problem)
	}
	if l := s.LogPush; l != nil {
		e.reportProblem("log push", e.command("up")+" # after stopping the process and correcting the token",
			"pushing the log to "+l.Repository+" fails: ", l.Problem)
	}
	if f := s.Following; f != nil {
		e.reportProblem("source", "larder doctor # at the source, "+f.Source, "following "+f.Source+": ", strings.TrimSpace(f.Problem+" "+f.Stale))
	}
}

// examineUpstreamStatus adds a finding for each problem that the status has of upstreams, the catalogue, the change feed and
// fallback origins. It sends no requests.
func (e *examination) examineUpstreamStatus(s *Status) {
	if c := s.Catalogue; c != nil {
		e.reportProblem("catalogue", e.command("reload")+" # after correcting catalogue or its source",
			"the catalogue "+c.Source+" cannot be read: ", c.Problem)
		for _, refused := range c.Refused {
			file := refused.File
			path, err := filepath.Abs(filepath.Join(c.Source, filepath.FromSlash(file)))
			if _, missing := os.Stat(path); err == nil && missing == nil { // not in a repository or an archive
				file = path
			}
			e.report("catalogue", "larder lint "+quoteForShell(file)+" && "+e.command("reload"), "a file of the catalogue is refused: "+refused.Reason)
		}
	}
	if s.Feed != nil {
		e.reportProblem("feed", e.command("reload")+" # after correcting feed", "the registry's change feed cannot be read: ", s.Feed.Problem)
	}
	for _, t := range s.Problems {
		switch t.Kind {
		case bot.UpstreamProblem:
			e.report("upstream", e.command("status"), fmt.Sprintf("%d packages cannot be polled, such as %s: %s", t.Count, t.Packages[0], t.Cause))
		case bot.ReplacedProblem:
			e.report("repository", e.command("status "+t.Packages[0]), t.Packages[0]+": "+t.Cause)
		}
	}
	if f := s.Fallback; f != nil {
		for _, o := range f.Origins {
			e.reportProblem("fallback", e.command("status"), o.Origin+": ", strings.TrimSpace(o.Problem+" "+o.Stale))
		}
	}
}

// examineStore adds findings about an open data folder: a disk that is almost full, a last log entry in the future, the log's
// key, the owner of files, and for a log with entries backups, copies of the keys and deep checks.
func (e *examination) examineStore(r *Reader) {
	if note, err := r.store.CheckSpace(); err != nil || note != "" {
		if err != nil {
			note = err.Error()
		}
		e.report("disk", "df -h "+e.data+" # then remove what is not Larder's, or enlarge the disk", note)
	}
	size := r.log.Checkpoint().Size
	if newest, err := logs.ReadEntry(r.store, size-1); size > 0 && err == nil && newest.Time.Sub(e.now) > clockTolerance {
		e.report("clock", "timedatectl set-ntp true # then restart Larder", fmt.Sprintf("the newest entry of the log is from %s, which is in the future", newest.Time.UTC().Format(time.DateTime)))
	}
	e.examineFolders()
	if size > 0 {
		e.examineUpkeep()
	}
}
