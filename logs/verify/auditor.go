package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs"
)

// An AuditStatement is an auditor's statement about a log: it compared the releases that some entries publish with their upstreams,
// file by file. As a signed note (https://c2sp.org/signed-note), its text is [auditHeader], the statement as JSON in a line, and the
// checkpoint that the auditor has verified, which is a signed note too.
type AuditStatement struct {
	Format int `json:"format"`
	// From is the first entry that was audited, and To the one after the last.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Compared is the number of releases in which everything that could be compared is upstream's.
	Compared int64 `json:"compared"`
	// Differences are the releases with files that are not upstream's, by entry, and Uncompared those that could not be compared.
	Differences []AuditFinding `json:"differences"`
	Uncompared  []AuditFinding `json:"uncompared"`

	// Auditor is the name of the key, and Checkpoint the log's signed checkpoint. They are not part of the JSON.
	Auditor    string `json:"-"`
	Checkpoint string `json:"-"`
}

// An AuditFinding is about one release.
type AuditFinding struct {
	Entry   int64  `json:"entry"` // that published it
	Package string `json:"package"`
	Version string `json:"version"`
	Problem string `json:"problem"`
	// Files are the paths that it is about; all files of the release if there are none.
	Files []string `json:"files,omitempty"`
}

const (
	auditFormat = 1
	auditHeader = "larder-audit/v1"
	// MaxStatement bounds a signed statement, in bytes. Signed notes may have no more than a million.
	MaxStatement = 1_000_000
)

// Sign returns the statement, with Checkpoint in it, as a note that is signed with an auditor's key. It sets Format in the
// note, and does not use Auditor. The error says that the note would have over [MaxStatement] bytes, or that signing
// failed.
func (s AuditStatement) Sign(key note.Signer) ([]byte, error) {
	s.Format = auditFormat
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	signed, err := note.Sign(&note.Note{Text: auditHeader + "\n" + string(data) + "\n" + s.Checkpoint}, key)
	if err == nil && len(signed) > MaxStatement {
		err = fmt.Errorf("it has %d bytes, over the limit of %d", len(signed), MaxStatement)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't sign the audit's statement: %w", err)
	}
	return signed, nil
}

// OpenAuditStatement verifies a signed statement with an auditor's verifier key and parses it, with Auditor and Checkpoint.
// An unknown format or an invalid range of entries is an error. It does not verify the checkpoint in the statement, nor
// that the log has the entries, which the caller must do.
func OpenAuditStatement(signed []byte, key string) (*AuditStatement, error) {
	v, err := note.NewVerifier(key)
	if err != nil {
		return nil, CheckKey(key)
	}
	if len(signed) > MaxStatement {
		return nil, fmt.Errorf("the statement has over %d bytes", MaxStatement)
	}
	n, err := note.Open(signed, note.VerifierList(v))
	if err != nil {
		return nil, fmt.Errorf("not a statement that is signed with %s: %w", key, err)
	}
	header, rest, _ := strings.Cut(n.Text, "\n")
	data, checkpoint, _ := strings.Cut(rest, "\n")
	s := &AuditStatement{Auditor: v.Name(), Checkpoint: checkpoint}
	err = json.Unmarshal([]byte(data), s)
	if err == nil && (header != auditHeader || s.Format != auditFormat) {
		err = errors.New("this larder does not know its format")
	}
	if err == nil && (s.From < 0 || s.To < s.From) {
		err = errors.New("its range of entries is invalid")
	}
	if err != nil {
		return nil, fmt.Errorf("what %s has signed is not an audit statement: %w", v.Name(), err)
	}
	return s, nil
}

// fileOutcome returns what the auditor found about one file of the release that the log entry with this index published. A
// difference in any file of the release counts for all its files; an entry that was not audited, or a file that was not compared, is
// [Unproven]. Without a finding about it, the file is [Proven]. If the outcome is not Proven, problem says why.
func (s *AuditStatement) fileOutcome(entry int64, path string) (_ Outcome, problem string) {
	if entry < s.From || entry >= s.To {
		return Unproven, fmt.Sprintf("entry %d is not audited: the statement is about entries %d to %d", entry, s.From, s.To-1)
	}
	for _, f := range s.Differences {
		if f.Entry == entry {
			return Differs, f.Problem
		}
	}
	for _, f := range s.Uncompared {
		if f.Entry == entry && (len(f.Files) == 0 || slices.Contains(f.Files, path)) {
			return Unproven, "it was not compared: " + f.Problem
		}
	}
	return Proven, ""
}

// An Auditor is an auditor whose statements about a log count.
type Auditor struct {
	// Key is its verifier key, and Statement the URL or the file of its newest statement.
	Key, Statement string
}

// ParseAuditor parses STATEMENT#KEY, at the last #: the URL or path of an auditor's statement, and the auditor's verifier
// key or the path of a file with that key, which it reads. It does not read the statement.
func ParseAuditor(argument string) (a Auditor, err error) {
	at := strings.LastIndex(argument, "#")
	if at <= 0 {
		return a, fmt.Errorf("%q is not STATEMENT#KEY: the URL or file of an auditor's statement, # and the auditor's key, or a file with it", argument)
	}
	a.Statement = argument[:at]
	a.Key, err = ReadKey(argument[at+1:])
	if err == nil && a.Key == "" {
		err = fmt.Errorf("%q has no key behind the #", argument)
	}
	return a, err
}

// CountAuditors returns the number of different keys among auditors. An auditor with several statements, such as about several
// logs, counts once.
func CountAuditors(auditors []Auditor) int {
	keys := make(map[string]bool)
	for _, a := range auditors {
		keys[a.Key] = true
	}
	return len(keys)
}

// An AuditVerdict is the finding of an auditor about a file.
type AuditVerdict struct {
	Auditor string  `json:"auditor"`           // the name of its key
	Outcome Outcome `json:"outcome"`           // [Proven], [Differs] or [Unproven]
	Problem string  `json:"problem,omitempty"` // why it is not proven
	Size    int64   `json:"size,omitempty"`    // entries of the log up to which it has audited

	key       string
	statement *AuditStatement // nil if there is none that counts, as Problem says
}

// readAuditStatements reads the statements of all auditors in the options into l.audits. A statement that cannot be read or
// verified is no error and counts as [Unproven]. If an auditor has seen a larger log, the log is marked as unverified, without an error. The
// error is a [ForkError], if the log's key has also signed another log that an auditor saw, or says that ctx has ended.
func (l *Log) readAuditStatements(ctx context.Context) error {
	for _, a := range l.options.Auditors {
		name, _, _ := strings.Cut(a.Key, "+")
		verdict := AuditVerdict{Auditor: name, Outcome: Unproven, key: a.Key}
		s, err := l.readAuditStatement(ctx, a)
		if err == nil {
			verdict.statement, verdict.Size = s, s.To
		} else if verdict.Problem = err.Error(); OutcomeOf(err) == Forked || ctx.Err() != nil {
			return err
		}
		l.audits = append(l.audits, verdict)
	}
	return nil
}

// readAuditStatement reads an auditor's statement from its file or URL, verifies its signature, and verifies that the log
// contains the checkpoint in it. If the log does not, the error is a [ForkError] or a [Difference]. A statement about
// another log is another error. If the log is smaller than that checkpoint, this is no error, but the log is then marked as
// stale; if it was unverified already, the two are not compared.
func (l *Log) readAuditStatement(ctx context.Context, a Auditor) (*AuditStatement, error) {
	var signed []byte
	var err error
	if IsURL(a.Statement) {
		signed, err = l.options.fetchURL(ctx, a.Statement, MaxStatement)
	} else {
		signed, err = disk.ReadAtMost(a.Statement, MaxStatement)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't get the auditor's statement: %w", err)
	}
	s, err := OpenAuditStatement(signed, a.Key)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix([]byte(s.Checkpoint), []byte(l.Origin()+"\n")) {
		origin, _, _ := strings.Cut(s.Checkpoint, "\n")
		return nil, fmt.Errorf("the auditor's statement is about the log %.200q, not about %q", origin, l.Origin())
	}
	seen, err := l.openSeenCheckpoint(s.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("the auditor's statement is about a checkpoint that the log's key has not signed: %w", err)
	}
	switch {
	case s.To > seen.Size:
		return nil, fmt.Errorf("the auditor's statement is about %d entries, under a checkpoint of %d", s.To, seen.Size)
	case seen.Size <= l.Tree.N || l.unverified == nil:
		err = l.compareWithCheckpoint(ctx, seen)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't prove that the log is the one that the auditor has seen: %w", err)
	}
	return s, nil
}

// applyAudits adds the auditors' verdicts to the result of a file. The outcome becomes [Differs] if one auditor found a
// difference. If it is still [Proven], it becomes [Unproven] if fewer auditors than required found the file to be
// upstream's.
func (l *Log) applyAudits(r *Result, published logs.Indexed) {
	var agree []Auditor
	for _, verdict := range l.audits {
		if verdict.statement != nil {
			verdict.Outcome, verdict.Problem = verdict.statement.fileOutcome(published.Index, r.Path)
		}
		r.Audits = append(r.Audits, verdict)
		switch {
		case verdict.Outcome == Proven:
			agree = append(agree, Auditor{Key: verdict.key})
		case verdict.Outcome == Differs && r.Outcome != Differs:
			r.Outcome, r.Problem = Differs, fmt.Sprintf("the auditor %s says that it is not upstream's: %s", verdict.Auditor, verdict.Problem)
		}
	}
	if agreed, need := CountAuditors(agree), l.options.NeedAuditors; agreed < need && r.Outcome == Proven {
		r.Outcome, r.Problem = Unproven, fmt.Sprintf("%d of the given auditors have found it to be upstream's, and %d are required", agreed, need)
	}
}

// CompareWith fetches what the log says about the release that entry e publishes, has upstream compare it, and returns the
// release's manifest too. The package JSON is not compared. The error says why the log does not prove the manifest or the
// attestations. A difference from upstream, or an upstream that cannot be compared, is no error: the Comparison says so.
func (l *Log) CompareWith(ctx context.Context, upstream Upstream, e logs.Indexed) (Comparison, *logs.Manifest, error) {
	manifest, err := l.fetchManifest(ctx, e)
	if err != nil {
		return Comparison{}, nil, err
	}
	found, err := l.compareWithUpstream(ctx, upstream, &Release{Package: e.Package, Version: e.Version, Published: e, Manifest: manifest})
	return found, manifest, err
}
