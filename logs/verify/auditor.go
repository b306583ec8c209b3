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

	"github.com/larder-cdn/larder/logs"
)

// An AuditStatement is what an auditor says of a log: it compared the releases that some entries publish with their upstreams,
// file by file. As a signed note (https://c2sp.org/signed-note), its text is [auditHeader], the statement as JSON in a line,
// and the checkpoint that the auditor had verified, which is a signed note itself.
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
	// Files are the paths that it is about; all files of the release where there are none.
	Files []string `json:"files,omitempty"`
}

const (
	auditFormat = 1
	auditHeader = "larder-audit/v1"
	// MaxStatement bounds a signed statement, in bytes. Signed notes may have no more than a million.
	MaxStatement = 1_000_000
)

// Sign returns the statement as a note that an auditor's key has signed.
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

// OpenAuditStatement verifies a statement by an auditor's verifier key. The checkpoint in it is still to be verified.
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
		return nil, fmt.Errorf("it is not a statement that %s has signed: %w", key, err)
	}
	header, rest, _ := strings.Cut(n.Text, "\n")
	data, checkpoint, _ := strings.Cut(rest, "\n")
	s := &AuditStatement{Auditor: v.Name(), Checkpoint: checkpoint}
	decoder := json.NewDecoder(strings.NewReader(data))
	err = decoder.Decode(s)
	if err == nil && (header != auditHeader || s.Format != auditFormat) {
		err = errors.New("this larder does not know its format")
	}
	if err == nil && (s.From < 0 || s.To < s.From) {
		err = errors.New("its range of entries is none")
	}
	if err != nil {
		return nil, fmt.Errorf("%s has signed what is no statement of an audit: %w", v.Name(), err)
	}
	return s, nil
}

// judge returns what the statement says of a file of the release that an entry published.
func (s *AuditStatement) judge(entry int64, path string) (Outcome, string) {
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

// An Auditor is one whose word about a log counts.
type Auditor struct {
	// Key is its verifier key, and Statement the URL or the file of its newest statement.
	Key, Statement string
}

// ParseAuditor reads STATEMENT#KEY, where KEY may be a file with it.
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

// CountAuditors returns how many auditors there are, by their keys: one may publish several statements, such as of several logs.
func CountAuditors(auditors []Auditor) int {
	keys := make(map[string]bool)
	for _, a := range auditors {
		keys[a.Key] = true
	}
	return len(keys)
}

// An AuditVerdict is what an auditor says of a file.
type AuditVerdict struct {
	Auditor string  `json:"auditor"`           // the name of its key
	Outcome Outcome `json:"outcome"`           // [Proven], [Differs] or [Unproven]
	Problem string  `json:"problem,omitempty"` // why it is not proven
	Size    int64   `json:"size,omitempty"`    // entries of the log up to which it has audited
}

// readAudits reads the auditors' statements about the log. One about another log that the same key has signed proves a fork.
func (l *Log) readAudits(ctx context.Context) error {
	for _, a := range l.options.Auditors {
		name, _, _ := strings.Cut(a.Key, "+")
		read := audit{key: a.Key, verdict: AuditVerdict{Auditor: name, Outcome: Unproven}}
		s, err := l.readStatement(ctx, a)
		if err == nil {
			read.statement, read.verdict.Size = s, s.To
		} else if read.verdict.Problem = err.Error(); OutcomeOf(err) == Forked || ctx.Err() != nil {
			return err
		}
		l.audits = append(l.audits, read)
	}
	return nil
}

// An audit has the statement of an auditor, or nil and a verdict that says why it does not count.
type audit struct {
	key       string
	verdict   AuditVerdict
	statement *AuditStatement
}

func (l *Log) readStatement(ctx context.Context, a Auditor) (*AuditStatement, error) {
	var signed []byte
	var err error
	if IsURL(a.Statement) {
		at := *l.remote
		at.base, at.read = a.Statement, nil
		signed, err = at.get(ctx, "", MaxStatement)
	} else {
		signed, err = readAtMost(a.Statement, MaxStatement)
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
	seen, err := l.openSeen(s.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("the auditor's statement is about a checkpoint that the log's key has not signed: %w", err)
	}
	switch {
	case s.To > seen.Size:
		return nil, fmt.Errorf("the auditor's statement is about %d entries, under a checkpoint of %d", s.To, seen.Size)
	case seen.Size > l.tree.N && l.unverified == nil:
		err = l.markStale(ctx, seen)
	case seen.Size <= l.tree.N:
		err = l.contains(ctx, seen)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't prove that the log is the one that the auditor has seen: %w", err)
	}
	return s, nil
}

// checkAudits compares a proven file with the statements of the auditors. One auditor that found a difference is enough for
// [Differs].
func (l *Log) checkAudits(r *Result, published logs.Indexed) {
	var agree []Auditor
	for _, a := range l.audits {
		verdict := a.verdict
		if a.statement != nil {
			verdict.Outcome, verdict.Problem = a.statement.judge(published.Index, r.Path)
		}
		r.Audits = append(r.Audits, verdict)
		switch {
		case verdict.Outcome == Proven:
			agree = append(agree, Auditor{Key: a.key})
		case verdict.Outcome == Differs && r.Outcome != Differs:
			r.Outcome, r.Problem = Differs, fmt.Sprintf("the auditor %s says that it is not upstream's: %s", verdict.Auditor, verdict.Problem)
		}
	}
	if agreed, need := CountAuditors(agree), l.options.NeedAuditors; agreed < need && r.Outcome == Proven {
		r.Outcome, r.Problem = Unproven, fmt.Sprintf("%d of the given auditors have found it to be upstream's, and %d are required", agreed, need)
	}
}

// CompareWith compares the release that an entry publishes with its upstream. The error says why the log does not prove what
// it says of the release.
func (l *Log) CompareWith(ctx context.Context, upstream Upstream, e logs.Indexed) (Comparison, *logs.Manifest, error) {
	manifest, err := l.manifest(ctx, e)
	if err != nil {
		return Comparison{}, nil, err
	}
	claim, err := l.claim(ctx, &Release{Package: e.Package, Version: e.Version, Published: e, Manifest: manifest})
	if err != nil {
		return Comparison{}, nil, err
	}
	return upstream.Compare(ctx, claim), manifest, nil
}
