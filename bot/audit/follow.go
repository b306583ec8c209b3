package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// ErrNoUpstream says that a release has no upstream with which it could be compared.
var ErrNoUpstream = errors.New("it has no upstream")

// FollowOptions configure a [Follower]. Server, Folder and Upstream are required.
type FollowOptions struct {
	// Server is the URL in front of /log/ of the Larder whose log is audited.
	Server string
	// Folder is the auditor's folder: its key, its state, and the folder "public" with its statements.
	Folder string
	// Name is that of a new key, such as auditor.example.org/larder.
	Name string
	// Verify has the trust in the log, and Upstream compares releases.
	Verify   verify.Options
	Upstream verify.Upstream
	// OpenTimeout limits opening the log. Default: a minute.
	OpenTimeout time.Duration
	// Report, where set, is called with each release that was compared.
	Report func(verify.AuditFinding, verify.Outcome)
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// A Follower audits the log of another Larder: it compares each release with its upstream, once, and signs what it found. It is
// for one goroutine.
type Follower struct {
	options FollowOptions
	key     note.Signer
	public  string
	state   followState
	written []byte // the last statement
	size    int    // of the findings in the state, in bytes of JSON
	savedAt time.Time
}

// A followState is the state that is stored between polls.
type followState struct {
	Format int    `json:"format"`
	Server string `json:"server"`
	verify.AuditStatement
	// Tree is that of the log from which all audited entries are.
	Tree logs.Checkpoint `json:"tree"`
	// Retry are the entries of the uncompared releases that another attempt may compare.
	Retry []int64 `json:"retry,omitempty"`
}

// The files in the folder of an auditor.
const (
	auditKeyFile   = "audit.key"
	auditStateFile = "audit-state.json"
	// AuditPublicFolder has what the auditor publishes: its verifier key, its newest statement, and one for each checkpoint.
	AuditPublicFolder = "public"
	AuditPublicKey    = "audit.pub"
	AuditStatement    = "statement.txt"
)

// Limits of what an auditor stores and publishes.
const (
	followFormat  = 1
	mostFindings  = 1000 // of each kind; the audit stops there, because a statement must name all of them
	maxAuditPaths = 4096 // bytes of the paths in a finding; a finding with more is about all files
	maxProblem    = 300  // bytes
	// maxFindings bounds the findings of a statement, in bytes. The audit stops there, because a statement with one more finding
	// and the checkpoint must stay below [verify.MaxStatement].
	maxFindings = 850_000

	compareTimeout = 10 * time.Minute // of a release
)

// OpenFollower opens an auditor's folder, creates it if necessary, reads its state, and creates its key if it has none. It writes
// the verifier key of that into the public folder.
func OpenFollower(o FollowOptions) (*Follower, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.OpenTimeout = cmp.Or(o.OpenTimeout, time.Minute)
	if o.Report == nil {
		o.Report = func(verify.AuditFinding, verify.Outcome) {}
	}
	f := &Follower{options: o}
	if err := os.MkdirAll(filepath.Join(o.Folder, AuditPublicFolder), 0o755); err != nil {
		return nil, fmt.Errorf("couldn't create the auditor's folder: %w", err)
	}
	if err := f.openKey(); err != nil {
		return nil, err
	}
	return f, f.readState()
}

// openKey reads the auditor's key, or creates it with the name in the options, and writes its verifier key into the public
// folder.
func (f *Follower) openKey() error {
	path := filepath.Join(f.options.Folder, auditKeyFile)
	private, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var made string
		if made, _, err = signing.NewKey(f.options.Name); err != nil {
			return fmt.Errorf("a new auditor needs a --name for its key: it %w", err)
		}
		private = []byte(made + "\n")
		err = disk.Replace(path, private, 0o600)
	}
	if err != nil {
		return fmt.Errorf("couldn't open the auditor's key: %w", err)
	}
	if f.key, f.public, err = signing.ParseKey(private); err != nil {
		return fmt.Errorf("couldn't read the auditor's key in %s: %w", path, err)
	}
	return disk.Replace(filepath.Join(f.options.Folder, AuditPublicFolder, AuditPublicKey), []byte(f.public+"\n"), 0o644)
}

// Key returns the auditor's verifier key.
func (f *Follower) Key() string { return f.public }

// readState reads the state that the last poll stored; without one, the audit starts at the first entry. A state of another
// server or format is an error.
func (f *Follower) readState() error {
	path := filepath.Join(f.options.Folder, auditStateFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		f.state = followState{Format: followFormat, Server: f.options.Server}
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f.state)
	}
	switch {
	case err != nil:
	case f.state.Format != followFormat:
		err = fmt.Errorf("its format is %d, and this larder knows %d", f.state.Format, followFormat)
	case f.state.Server != f.options.Server:
		err = fmt.Errorf("it is of an audit of %s; each log needs a folder of its own", f.state.Server)
	}
	if err != nil {
		return fmt.Errorf("couldn't read the auditor's state in %s: %w", path, err)
	}
	for _, finding := range slices.Concat(f.state.Differences, f.state.Uncompared) {
		f.size += sizeInStatement(finding)
	}
	return nil
}

// saveInterval is how often the state is stored during a poll. Each time costs as much as the findings are long.
const saveInterval = time.Minute

// saveState stores the state for the next poll, unless that was done less than saveInterval ago; then it does nothing.
func (f *Follower) saveState() error {
	if f.options.Now().Sub(f.savedAt) < saveInterval {
		return nil
	}
	return f.writeState()
}

// writeState stores the state for the next poll at once, and notes the time for saveState.
func (f *Follower) writeState() error {
	data, err := json.Marshal(f.state)
	if err == nil {
		err = disk.Replace(filepath.Join(f.options.Folder, auditStateFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("couldn't write the auditor's state: %w", err)
	}
	f.savedAt = f.options.Now()
	return nil
}

// An AuditResult is the result of a poll.
type AuditResult struct {
	Outcome  verify.Outcome `json:"outcome"` // of the log: proven, or why it was not audited to its end
	Problem  string         `json:"problem,omitempty"`
	Evidence string         `json:"evidence,omitempty"` // the file that proves a fork
	Size     int64          `json:"size"`               // of the log
	// Cosigned is when the log's checkpoint was cosigned last, and Age how many seconds ago that was; nil if nothing says so.
	Cosigned    time.Time             `json:"cosigned,omitzero"`
	Age         *int64                `json:"age,omitempty"`
	Audited     int64                 `json:"audited"`  // entries
	Compared    int64                 `json:"compared"` // releases
	Differences []verify.AuditFinding `json:"differences"`
	Uncompared  []verify.AuditFinding `json:"uncompared"`
}

// Run polls at an interval until ctx ends, and calls report after each poll. It returns nil if ctx has ended, and the error
// of a poll that failed. A log that cannot be verified is not an error.
func (f *Follower) Run(ctx context.Context, every time.Duration, report func(AuditResult)) error {
	for {
		found, err := f.Poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		report(found)
		if retry.Sleep(ctx, every) != nil {
			return nil
		}
	}
}

// Poll audits the entries that are new since the last poll, compares again what could not be compared, stores the state and
// publishes a statement. If the log cannot be verified, it does none of that. A log that cannot be verified or audited to its end is
// not an error: the AuditResult says so, and releases that differ are listed in it. The error says that the known logs could not be
// read or stored, that the statement could not be published, or that ctx has ended.
func (f *Follower) Poll(ctx context.Context) (AuditResult, error) {
	known, err := verify.ReadKnown(filepath.Join(f.options.Folder, "known-logs"))
	if err != nil {
		return AuditResult{}, err
	}
	session := verify.Session{Options: f.options.Verify, Known: known, Timeout: f.options.OpenTimeout}
	seen, log, err := session.OpenLog(ctx, f.options.Server)
	if err != nil {
		return AuditResult{}, err
	}
	found := AuditResult{Outcome: verify.Proven, Cosigned: seen.Cosigned, Age: seen.Age}
	if seen.Outcome != "" {
		found.Outcome, found.Problem, found.Evidence = seen.Outcome, seen.Problem, seen.Evidence
	}
	if log != nil && log.Unverified() == nil {
		found.Size = log.Size()
		audited := f.adoptLog(ctx, log)
		continued := audited == nil // the state is about this log
		if continued {
			audited = errors.Join(f.retryUncompared(ctx, log), f.auditNew(ctx, log), f.writeState())
		}
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if audited != nil {
			found.Outcome, found.Problem = verify.OutcomeOf(audited), audited.Error()
		}
		if continued {
			if err := f.publishStatement(log); err != nil {
				return found, err
			}
		}
	}
	found.Audited, found.Compared = f.state.To, f.state.AuditStatement.Compared
	found.Differences, found.Uncompared = append([]verify.AuditFinding{}, f.state.Differences...), append([]verify.AuditFinding{}, f.state.Uncompared...)
	return found, nil
}

// adoptLog verifies that the log is consistent with the tree that was audited before, and records its present tree in the state. If the
// log is not consistent with it, the audit starts again at the first entry: after a theft of the log's key, the auditor may have
// followed the thief's log until the root key ended that key. adoptLog returns an error only if the proof cannot be fetched or read.
func (f *Follower) adoptLog(ctx context.Context, log *verify.Log) error {
	err := log.CheckContains(ctx, f.state.Tree)
	switch {
	case verify.OutcomeOf(err) == verify.Differs:
		f.state.AuditStatement, f.state.Retry, f.size = verify.AuditStatement{}, nil, 0
	case err != nil:
		return fmt.Errorf("couldn't prove that the log contains what was audited before: %w", err)
	}
	f.state.Tree = logs.Checkpoint{Size: log.Size(), Root: log.Root()}
	return nil
}

// auditNew compares the releases that the log's new entries publish, advances the state entry by entry, and stores it now and then.
// A release that differs is not an error; the error says why the audit could not go on to the log's end.
func (f *Follower) auditNew(ctx context.Context, log *verify.Log) error {
	for f.state.To < log.Size() {
		entries, err := log.Entries(ctx, f.state.To)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Kind.Publishes() {
				if err := f.compareRelease(ctx, log, e); err != nil {
					return err
				}
			}
			f.state.To = e.Index + 1
			if err := f.saveState(); err != nil {
				return err
			}
		}
	}
	return nil
}

// retryUncompared compares again the releases in state.Retry: those that an earlier audit could not compare, but for those that have no
// upstream. A release that still cannot be compared stays in the state. The first error ends the retries; Poll audits the new entries
// all the same.
func (f *Follower) retryUncompared(ctx context.Context, log *verify.Log) error {
	for _, index := range slices.Clone(f.state.Retry) {
		e, err := log.Entry(ctx, index)
		if err != nil {
			return err
		}
		retry, uncompared, size := slices.Clone(f.state.Retry), slices.Clone(f.state.Uncompared), f.size
		f.state.Retry = slices.DeleteFunc(f.state.Retry, func(i int64) bool { return i == index })
		f.state.Uncompared = slices.DeleteFunc(f.state.Uncompared, func(u verify.AuditFinding) bool {
			if u.Entry != index {
				return false
			}
			f.size -= sizeInStatement(u)
			return true
		})
		if err := f.compareRelease(ctx, log, e); err != nil {
			f.state.Retry, f.state.Uncompared, f.size = retry, uncompared, size // no statement may say that the release was compared
			return err
		}
		if err := f.saveState(); err != nil {
			return err
		}
	}
	return nil
}

// compareRelease compares the release that an entry publishes, records the result in the state, and reports it. A difference, a
// release that could not be compared, and one with unchecked files are findings, and no errors. The error says that the audit cannot
// continue beyond this entry: a statement has no room for more findings, or ctx has ended.
func (f *Follower) compareRelease(ctx context.Context, log *verify.Log, e logs.Indexed) error {
	if f.size > maxFindings {
		return fmt.Errorf("the audit ends before entry %d: a statement has room for %d bytes of findings, and they have %d", e.Index, maxFindings, f.size)
	}
	if len(f.state.Differences) >= mostFindings || len(f.state.Uncompared) >= mostFindings {
		return fmt.Errorf("the audit ends before entry %d: it found %d releases that differ and %d that could not be compared, and a statement names no more than %d of each", e.Index, len(f.state.Differences), len(f.state.Uncompared), mostFindings)
	}
	limited, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	found, manifest, err := log.CompareWith(limited, f.options.Upstream, e)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	outcome, problem := found.Outcome, found.Problem
	if err != nil { // clients verify by themselves that the server sends what the log says
		outcome, problem, found.Err = verify.Unproven, err.Error(), err
	}
	finding := verify.AuditFinding{Entry: e.Index, Package: e.Package, Version: e.Version, Problem: text.Short(problem, maxProblem)}
	switch {
	case outcome == verify.Differs:
		f.addFinding(&f.state.Differences, finding)
	case outcome != verify.Proven:
		outcome = verify.Unproven
		f.addFinding(&f.state.Uncompared, finding)
		if !errors.Is(found.Err, ErrNoUpstream) {
			f.state.Retry = append(f.state.Retry, e.Index)
		}
	default:
		f.state.Compared++
		if found.Unchecked > 0 {
			finding.Problem, finding.Files = uncheckedFiles(found, manifest)
			f.addFinding(&f.state.Uncompared, finding)
		}
	}
	f.options.Report(finding, outcome)
	return nil
}

// addFinding adds a finding to one of the state's lists, of differences or of uncompared releases, and its size to f.size.
func (f *Follower) addFinding(list *[]verify.AuditFinding, finding verify.AuditFinding) {
	*list = append(*list, finding)
	f.size += sizeInStatement(finding)
}

// sizeInStatement returns how many bytes a finding takes in a statement, with the comma after it.
func sizeInStatement(finding verify.AuditFinding) int {
	data, err := json.Marshal(finding)
	if err != nil { // strings and numbers can always be encoded
		return maxFindings
	}
	return len(data) + len(",")
}

// uncheckedFiles returns the paths of a release's files that could not be compared, and the reason for the first of them as
// problem. files is nil if the paths are too long to list; then the finding is about all files.
func uncheckedFiles(found verify.Comparison, manifest *logs.Manifest) (problem string, files []string) {
	size := 0
	for _, file := range manifest.Files {
		if _, err := found.At(file.Path); err != nil {
			files = append(files, file.Path)
			size += len(file.Path)
			if problem == "" {
				problem = text.Short(err.Error(), maxProblem)
			}
		}
	}
	if size > maxAuditPaths {
		files = nil
	}
	return problem, files
}

// publishStatement signs a statement about the log and writes it into the public folder, under the log's size and as the newest one,
// unless it equals the last one of this process.
func (f *Follower) publishStatement(log *verify.Log) error {
	statement := f.state.AuditStatement
	statement.Checkpoint = checkpointText(log)
	statement.Differences, statement.Uncompared = append([]verify.AuditFinding{}, statement.Differences...), append([]verify.AuditFinding{}, statement.Uncompared...)
	signed, err := statement.Sign(f.key)
	if err != nil {
		return err
	}
	if slices.Equal(signed, f.written) {
		return nil
	}
	for _, name := range []string{fmt.Sprintf("%d.txt", log.Size()), AuditStatement} {
		if err := disk.Replace(filepath.Join(f.options.Folder, AuditPublicFolder, name), signed, 0o644); err != nil {
			return fmt.Errorf("couldn't publish the audit's statement: %w", err)
		}
	}
	f.written = signed
	return nil
}

// checkpointText returns the log's signed checkpoint for an audit statement, with exactly one line feed at its end.
func checkpointText(log *verify.Log) string {
	return strings.TrimRight(string(log.Note()), "\n") + "\n"
}
