package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/signing"
)

// An upkeepJob is work that has to be done at intervals, and whose last run is recorded.
type upkeepJob string

const (
	upkeepBackup  upkeepJob = "backup"  // a backup of the data folder
	upkeepFsck    upkeepJob = "fsck"    // a deep check, or another one that found something wrong
	upkeepKeys    upkeepJob = "keys"    // a copy of the log's keys
	upkeepRestore upkeepJob = "restore" // a restore of a backup to a temporary folder, as a test
)

// An upkeepRecord is the record of the last runs of a job, and its JSON form.
type upkeepRecord struct {
	// Succeeded is when the job last succeeded, zero for never. Detail says of what: the target of a backup or a restore test, the
	// verifier key of the copied keys, "" for a check.
	Succeeded time.Time `json:"succeeded,omitzero"`
	Detail    string    `json:"detail,omitempty"`
	// Failed is when the job last failed since then, and Problem why; zero and "" if it did not.
	Failed  time.Time `json:"failed,omitzero"`
	Problem string    `json:"problem,omitempty"`
}

// upkeepFile returns the path of the record of a job in the data folder data. It is not in the store, so a backup does not
// contain it.
func upkeepFile(data string, job upkeepJob) string {
	return filepath.Join(data, "upkeep", string(job)+".json")
}

// readUpkeep reads the record of a job's last runs from the data folder data; the zero record if the job has never run.
func readUpkeep(data string, job upkeepJob) (record upkeepRecord, err error) {
	text, err := os.ReadFile(upkeepFile(data, job))
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	return record, err
}

// recordUpkeep records in the data folder data that a job ended at now: with problem, or if that is nil, with success and
// detail; see [upkeepRecord]. A failure leaves the record of the last success, and a success removes that of a failure.
func recordUpkeep(data string, job upkeepJob, now time.Time, detail string, problem error) error {
	record := upkeepRecord{Succeeded: now.UTC(), Detail: detail}
	if problem != nil {
		record, _ = readUpkeep(data, job) // a damaged record is replaced
		record.Failed, record.Problem = now.UTC(), problem.Error()
	}
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	file := upkeepFile(data, job)
	if err := disk.MakeFolder(vfs.Default, filepath.Dir(file)); err != nil {
		return err
	}
	return disk.Replace(file, append(text, '\n'), 0o600)
}

// recordUpkeep records that a job on this data folder ended now; problem is nil if it succeeded, and detail is that of an
// [upkeepRecord]. If it cannot write the record, as on a read-only disk, it logs the error.
func (r *Reader) recordUpkeep(job upkeepJob, detail string, problem error) {
	if err := recordUpkeep(r.settings.Data, job, time.Now(), detail, problem); err != nil {
		r.logger.Warn("couldn't record the end of a job, so `larder doctor` does not know of it", "job", job, "err", err)
	}
}

// BackUpKeys copies the files with keys (*.key, *.pub, key-list) in the key folder of the settings to the folder dir, which it
// creates if it is missing, and records that in the data folder. It replaces files of the same name in dir. It returns the
// names of the copied files, after an error those before it. The last signed checkpoint is not copied, because restoring an old
// one would hide a fork of the log. It is an error if the log's verifier key is missing, or if its private key is there and
// cannot be used.
func BackUpKeys(s *settings.Settings, dir string) (copied []string, err error) {
	keys := s.KeyFolder()
	_, key, err := signing.ReadFolder(keys)
	if key == "" {
		return nil, fmt.Errorf("%w; --keys names the key folder", err)
	}
	if err := errors.Join(signing.CheckKey(keys), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	for _, pattern := range []string{"*.key", "*.pub", "key-list"} {
		files, _ := filepath.Glob(filepath.Join(escapeGlob(keys), pattern))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = disk.Replace(filepath.Join(dir, filepath.Base(file)), text, 0o600)
			}
			if err != nil {
				return copied, fmt.Errorf("couldn't copy the keys: %w", err)
			}
			copied = append(copied, filepath.Base(file))
		}
	}
	return copied, recordUpkeep(s.Data, upkeepKeys, time.Now(), key, nil)
}

// registerUpkeep registers for each kind of job (backup, deep check, copy of the keys, restore test) the metrics when it last
// succeeded and whether it failed last. They are read from the records in the data folder data.
func registerUpkeep(r prometheus.Registerer, data string) {
	for _, job := range []upkeepJob{upkeepBackup, upkeepFsck, upkeepKeys, upkeepRestore} {
		labels := prometheus.Labels{"task": string(job)}
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_upkeep_success_timestamp_seconds", ConstLabels: labels,
			Help: "Last success of a backup, a deep fsck (fsck), a copy of the keys (keys) or a restore test of a backup (restore), Unix time; 0 if never.",
		}, func() float64 {
			record, _ := readUpkeep(data, job)
			return float64(max(0, record.Succeeded.Unix())) // the zero time is before 1970
		}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_upkeep_failing", ConstLabels: labels,
			Help: "1 if the last backup, deep fsck (fsck), copy of the keys (keys) or restore test of a backup (restore) failed.",
		}, func() float64 {
			if record, err := readUpkeep(data, job); err != nil || record.Problem != "" {
				return 1
			}
			return 0
		}))
	}
}
