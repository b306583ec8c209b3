package app

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server"
)

// formatSize returns a number of bytes as text with a unit, such as 1.5 GiB; "0 B" for a negative number.
func formatSize(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }

// The age at which a backup, a restore test and a deep check are reported as old.
const (
	backupMaxAge  = 8 * 24 * time.Hour
	restoreMaxAge = restoreTestAge + backupMaxAge
	fsckMaxAge    = 35 * 24 * time.Hour
)

// examineUpkeep adds a finding for each deep check, backup, restore test and copy of the keys that failed, is old, or was never
// made.
func (e *examination) examineUpkeep() {
	e.examineJob(upkeepFsck, "deep fsck", e.command("fsck --deep"), fsckMaxAge)
	if e.settings.Backup == "" && !signing.HasKey(e.settings.KeyFolder()) {
		return // a mirror or a follower, which fetches everything again
	}
	backUp := e.command("backup") + " " + quoteForShell(cmp.Or(e.settings.Backup, "DIR"))
	e.examineJob(upkeepBackup, "backup", backUp, backupMaxAge)
	if e.settings.Backup != "" {
		e.examineJob(upkeepRestore, "restore test", backUp, restoreMaxAge)
	}
	if !signing.HasKey(e.settings.KeyFolder()) {
		return
	}
	_, key, _ := signing.ReadFolder(e.settings.KeyFolder())
	fix := e.command("key backup") + " DIR"
	switch record, err := readUpkeep(e.settings.Data, upkeepKeys); {
	case err != nil:
		e.report("keys", fix, err.Error())
	case record.Succeeded.IsZero():
		e.report("keys", fix, "the keys in "+e.settings.KeyFolder()+" were never copied; without them the log cannot be continued")
	case record.Detail != key:
		e.report("keys", fix, "the keys have changed since they were copied at "+record.Succeeded.Format(time.DateTime))
	}
}

// examineJob adds a finding if the last run of the job failed, ended more than maxAge ago, or never was. name is the finding's
// check, and fix the command that runs the job.
func (e *examination) examineJob(job upkeepJob, name, fix string, maxAge time.Duration) {
	record, err := readUpkeep(e.settings.Data, job)
	switch age := e.now.Sub(record.Succeeded); {
	case err != nil:
		e.report(name, fix, "the record of the last one cannot be read: "+err.Error())
	case record.Problem != "":
		if job == upkeepFsck {
			fix = e.repairCommand() + " && " + fix
		}
		e.report(name, fix, "the last one, at "+record.Failed.Format(time.DateTime)+", failed: "+record.Problem)
	case record.Succeeded.IsZero():
		e.report(name, fix, "there was none yet")
	case age > maxAge:
		e.report(name, fix, fmt.Sprintf("the last one is %d days old", age/(24*time.Hour)))
	}
}

// examineFolders adds findings about the log's key, and about the owners of the data folder, the key folder and the files in
// them. The folders may be missing.
func (e *examination) examineFolders() {
	keys := e.settings.KeyFolder()
	if err := signing.CheckKey(keys); err != nil {
		e.report("key", "cp /PATH/TO/COPY/log.key "+quoteForShell(keys), err.Error())
	}
	owner, ok := ownerOf(e.settings.Data)
	if !ok {
		return
	}
	fix := fmt.Sprintf("chown -R --reference=%s %s %s", e.data, e.data, quoteForShell(keys))
	if user := os.Geteuid(); user != 0 && user != owner {
		e.report("owner", fix, fmt.Sprintf("%s belongs to the user %d, and Larder runs as %d", e.settings.Data, owner, user))
		return
	}
	for _, folder := range []string{keys, storeDir(e.settings.Data)} {
		names, _ := filepath.Glob(filepath.Join(escapeGlob(folder), "*"))
		for _, file := range append([]string{folder}, names...) {
			if other, ok := ownerOf(file); ok && other != owner {
				e.report("owner", fix, fmt.Sprintf("%s belongs to the user %d, and the data folder to %d: a command was run as another user", file, other, owner))
				return
			}
		}
	}
}

// ownerOf returns the number of the user that the file at path belongs to. ok is false if the file cannot be found, or the system
// does not say.
func ownerOf(path string) (user int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// examineCertificateFiles adds a finding if the certificate file that the settings name cannot be read, has expired or expires
// soon. It does nothing if they name none.
func (e *examination) examineCertificateFiles() {
	s := e.settings
	if s.TLSCert == "" {
		return
	}
	pair, problem := server.ReadCertificate(s.TLSCert, s.TLSKey)
	e.examineStatus(&Status{Certificates: certificateState(s.TLSCert, pair.Leaf, problem)})
}

// examineSigned adds a finding if entries of the folder's log are not signed yet, or if the log was signed and the key folder has
// no key or cannot be read.
func (e *examination) examineSigned(r *Reader) {
	signed, key, err := signing.ReadFolder(e.settings.KeyFolder())
	size := r.log.Checkpoint().Size
	switch before, _ := signing.SignedBy(r.store); {
	case before == "" || size == 0:
	case key == "" && errors.Is(err, fs.ErrNotExist):
		e.report("log", e.command("up --keys KEYS"), "the log was signed before, and there is no key in "+e.settings.KeyFolder())
	case err != nil:
		e.report("log", e.command("up"), err.Error())
	case signed.Size < size:
		e.report("log", e.command("up"), fmt.Sprintf("%d of its %d entries are not signed", size-signed.Size, size))
	}
}
