package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// A Session verifies several subjects, of one or several servers. It opens the log of each server once, and stores it as known. It
// is for one goroutine.
type Session struct {
	// Options are those of each log; the session sets Server and what reads and stores known logs. Without a key, the one that is
	// stored for a server counts, or else the one that it names.
	Options Options
	Known   *Known
	// Timeout bounds the time for one subject, with the log of its server for the first one.
	Timeout time.Duration
	// Idle, where set, is called after each subject, proven or not, before Verify returns. It is not called if what was verified
	// of the log could not be stored.
	Idle func()
	// Opened, where set, is called once with each log, also with one that could not be opened or verified.
	Opened func(*SessionLog)

	logs []*SessionLog
}

// A SessionLog is a server's log and what verifying it found.
type SessionLog struct {
	Server   string `json:"server"`
	Origin   string `json:"origin,omitempty"`
	Key      string `json:"key,omitempty"`
	FirstUse bool   `json:"firstUse"` // the key was accepted from the server
	Size     int64  `json:"size"`
	Root     string `json:"root,omitempty"`
	// Since is the checkpoint of an earlier run, which this one contains.
	Since        *SeenBefore   `json:"since,omitempty"`
	Cosignatures []Cosignature `json:"cosignatures"`
	// Cosigned is as of when the checkpoint is vouched to be the newest, and Age how many seconds ago that was; nil if nothing says so.
	Cosigned time.Time `json:"cosigned,omitzero"`
	Age      *int64    `json:"age,omitempty"`
	// Outcome is why nothing is proven by the log, whatever its files are; "" if files may be proven.
	Outcome  Outcome `json:"outcome,omitempty"`
	Problem  string  `json:"problem,omitempty"`
	Evidence string  `json:"evidence,omitempty"` // the file that proves a fork

	log *Log
}

// DescribeAge says in words, as the function [DescribeAge] does, how long before the verification the checkpoint was
// vouched to be the newest.
func (l *SessionLog) DescribeAge() string {
	if l.Age == nil {
		return DescribeAge(time.Time{}, time.Time{})
	}
	return DescribeAge(l.Cosigned, l.Cosigned.Add(time.Duration(*l.Age)*time.Second))
}

// A SeenBefore is a checkpoint of an earlier run.
type SeenBefore struct {
	Size int64     `json:"size"`
	Time time.Time `json:"time"`
}

// Usable reports whether the log could be opened, and did not time out since, so that files can be compared with it. It may
// still prove nothing, as Outcome says.
func (l *SessionLog) Usable() bool { return l.log != nil }

// A Subject is something to verify: what is under a URL, or a local file.
type Subject struct {
	Server string // where its log is
	Name   Name
	URL    string
	File   string // in the place of a URL
}

// Logs returns a new slice of the logs of all servers that the session has opened or tried to open, in that order.
func (s *Session) Logs() []*SessionLog { return append([]*SessionLog{}, s.logs...) }

// Verify verifies one subject, and opens its server's log if that is the first one of the server. What is not proven is no
// error: the Result says why. It then calls s.Idle. The error says that the known logs or the evidence of a fork could not
// be written, or that the caller has ended ctx. If the timeout ends before the subject is verified, the log is not used any
// more: later subjects of the server are [Unproven].
func (s *Session) Verify(ctx context.Context, subject Subject) (*SessionLog, Result, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.openOnce(ctx, limited, subject.Server)
	if err != nil {
		return nil, Result{}, err
	}
	r := l.verifySubject(limited, subject)
	if s.Idle != nil {
		s.Idle()
	}
	if limited.Err() != nil && l.log != nil && r.Outcome == Unproven && r.Upstream == nil {
		l.log, l.Outcome, l.Problem = nil, Unproven, s.timeoutMessage()
		r.Problem = l.Problem
	}
	return l, r, ctx.Err()
}

// OpenLog opens a server's log, once, for a caller that reads its entries. A log that cannot be opened or verified is no
// error: the returned Log is nil, and the [SessionLog], which never is, says why. A Log that is returned may be unverified,
// see [Log.Unverified]. The error says that the known logs or the evidence of a fork could not be written, or that ctx has
// ended; a Log may be returned with it.
func (s *Session) OpenLog(ctx context.Context, server string) (*SessionLog, *Log, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.openOnce(ctx, limited, server)
	if err == nil {
		err = ctx.Err()
	}
	return l, l.log, err
}

// timeoutMessage returns the message that a server took longer than the session's timeout.
func (s *Session) timeoutMessage() string {
	return fmt.Sprintf("the server took longer than %v; --timeout gives it more", s.Timeout)
}

// openOnce returns a server's log, and opens it the first time, within withTimeout. A log that cannot be opened or verified
// is no error: the SessionLog says why. The error says that the known logs or the evidence of a fork could not be written.
// The SessionLog, which is never nil, is kept in any case, and later calls return it without an error. s.Opened is not
// called with an error, or if the caller has ended ctx.
func (s *Session) openOnce(ctx, withTimeout context.Context, server string) (*SessionLog, error) {
	for _, l := range s.logs {
		if l.Server == server {
			return l, nil
		}
	}
	l := &SessionLog{Server: server, Cosignatures: []Cosignature{}}
	s.logs = append(s.logs, l)
	err := s.readLog(withTimeout, l)
	if err != nil && l.log == nil {
		fork := (*ForkError)(nil)
		if errors.As(err, &fork) && fork.File == "" {
			return l, err // the evidence could not be stored
		}
		if fork != nil {
			l.Evidence, fork.File = fork.File, "" // which the problem need not name again
		}
		l.Outcome, l.Problem, err = OutcomeOf(err), err.Error(), nil
		if withTimeout.Err() != nil {
			l.Outcome, l.Problem = Unproven, s.timeoutMessage()
		}
	}
	if s.Opened != nil && ctx.Err() == nil && err == nil {
		s.Opened(l)
	}
	return l, err
}

// readLog opens and verifies the log of l.Server, stores it as known, and fills in l. With an error, l.log is nil if the log could not be
// verified, and else it could not be stored as known.
func (s *Session) readLog(ctx context.Context, l *SessionLog) (err error) {
	o := s.Options
	o.Server = l.Server
	before, _ := s.Known.ByServer(l.Server)
	l.Key = cmp.Or(o.Trust.Key, before.Key)
	l.log, l.FirstUse, err = s.Known.Open(ctx, o, o.Trust.now())
	if l.log == nil {
		return err
	}
	l.Origin, l.Key, l.Size, l.Root = l.log.Origin(), l.log.Key(), l.log.Size(), l.log.Root().String()
	l.Cosignatures = append(l.Cosignatures, l.log.Cosignatures()...)
	if l.Cosigned = l.log.Cosigned(); !l.Cosigned.IsZero() {
		age := int64(o.Trust.now().Sub(l.Cosigned).Seconds())
		l.Age = &age
	}
	if size, at := l.log.Seen(); size > 0 && !at.IsZero() && size <= l.Size {
		l.Since = &SeenBefore{size, at}
	}
	if d := l.log.unverified; d != nil {
		l.Outcome, l.Problem = d.Outcome, d.Problem
	}
	return err
}

// verifySubject compares a subject, the local file or else what is under the URL, with the log. If the log could not be
// opened, the result says so for every subject. A local file that cannot be read is [Unproven].
func (l *SessionLog) verifySubject(ctx context.Context, s Subject) Result {
	if l.log == nil {
		return Result{Outcome: l.Outcome, Problem: l.Problem, Name: s.Name}
	}
	if s.File == "" {
		return l.log.VerifyURL(ctx, s.URL, s.Name)
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return Result{Outcome: Unproven, Problem: err.Error(), Name: s.Name}
	}
	return l.log.VerifyBytes(ctx, data, s.Name)
}
