package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// A Session verifies several things, of one or several servers, whose logs it opens once and remembers. It is for one
// goroutine.
type Session struct {
	// Options are those of each log; Server and Known are the session's own. Without a key, the one that is known for a
	// server counts, or else the one that it shows.
	Options Options
	Known   *Known
	// Timeout bounds what a server may take for one thing, with its log for the first one.
	Timeout time.Duration
	// Idle, where set, is called when something was verified, before Verify returns.
	Idle func()
	// Opened, where set, is called with each log.
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
	// Outcome is why nothing is proven by the log, whatever its files are.
	Outcome  Outcome `json:"outcome,omitempty"`
	Problem  string  `json:"problem,omitempty"`
	Evidence string  `json:"evidence,omitempty"` // the file that proves a fork

	log *Log
}

// DescribeAge says how old the newest cosignature of the checkpoint was when it was verified.
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

// Usable reports whether files can be compared with the log.
func (l *SessionLog) Usable() bool { return l.log != nil }

// A Subject is something to verify: what is under a URL, or a file on this machine.
type Subject struct {
	Server string // where its log is
	Name   Name
	URL    string
	File   string // in the place of a URL
}

// Logs are those that were opened, in that order.
func (s *Session) Logs() []*SessionLog { return append([]*SessionLog{}, s.logs...) }

// Verify verifies one thing. An error is that what is known could not be written, or that the caller has ended it.
func (s *Session) Verify(ctx context.Context, subject Subject) (*SessionLog, Result, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.open(ctx, limited, subject.Server)
	if err != nil {
		return nil, Result{}, err
	}
	r := l.check(limited, subject)
	if s.Idle != nil {
		s.Idle()
	}
	if limited.Err() != nil && l.log != nil && r.Outcome == Unproven && r.Upstream == nil {
		l.log, l.Outcome, l.Problem = nil, Unproven, s.tooLong()
		r.Problem = l.Problem
	}
	return l, r, ctx.Err()
}

// Log opens a server's log for a caller that reads its entries. The log is nil where nothing is proven of it, which
// [SessionLog] tells.
func (s *Session) Log(ctx context.Context, server string) (*SessionLog, *Log, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.open(ctx, limited, server)
	if err == nil {
		err = ctx.Err()
	}
	return l, l.log, err
}

func (s *Session) tooLong() string {
	return fmt.Sprintf("the server took longer than %v; --timeout gives it more", s.Timeout)
}

// open verifies a server's log, once, and remembers its key and checkpoint.
func (s *Session) open(ctx, limited context.Context, server string) (*SessionLog, error) {
	for _, l := range s.logs {
		if l.Server == server {
			return l, nil
		}
	}
	l := &SessionLog{Server: server, Cosignatures: []Cosignature{}}
	s.logs = append(s.logs, l)
	err := s.read(limited, l)
	if err == nil {
		if d := l.log.unverified; d != nil {
			l.Outcome, l.Problem = d.Outcome, d.Problem
		}
		err = s.Known.Remember(server, l.log.options.Trust.Key, l.log, s.Options.Trust.now())
	} else {
		l.log, l.Outcome, l.Problem = nil, OutcomeOf(err), err.Error()
		if limited.Err() != nil {
			l.Outcome, l.Problem = Unproven, s.tooLong()
		}
		var fork *ForkError
		if errors.As(err, &fork) {
			l.Evidence, err = s.Known.KeepEvidence(fork.Evidence)
		} else {
			err = nil
		}
	}
	if s.Opened != nil && ctx.Err() == nil && err == nil {
		s.Opened(l)
	}
	return l, err
}

func (s *Session) read(ctx context.Context, l *SessionLog) error {
	o := s.Options
	o.Server = l.Server
	var err error
	if before, ok := s.Known.OfServer(l.Server); o.Trust.Key == "" && ok {
		o.Trust.Key = before.Key
	}
	if o.Trust.Key == "" && o.Trust.Root == "" {
		l.FirstUse = true
		if o.Trust.Key, err = FetchKey(ctx, o); err != nil {
			return fmt.Errorf("couldn't get the log's key: %w", err)
		}
	}
	var seen time.Time
	o.Known = func(key string) (KnownLog, bool) {
		before, ok := s.Known.OfKey(key)
		if ok {
			seen = before.Seen
		}
		return before, ok
	}
	l.Key, o.KnownList, o.KeepList = o.Trust.Key, s.Known.ListOf, s.Known.KeepList
	if l.log, err = Open(ctx, o); err != nil {
		return err
	}
	l.Origin, l.Key, l.Size, l.Root = l.log.Origin(), l.log.Key(), l.log.Size(), l.log.Root().String()
	l.Cosignatures = append(l.Cosignatures, l.log.Cosignatures()...)
	if l.Cosigned = l.log.Cosigned(); !l.Cosigned.IsZero() {
		age := int64(o.Trust.now().Sub(l.Cosigned).Seconds())
		l.Age = &age
	}
	if l.log.Seen() > 0 && !seen.IsZero() && l.log.Seen() <= l.Size {
		l.Since = &SeenBefore{l.log.Seen(), seen}
	}
	return nil
}

func (l *SessionLog) check(ctx context.Context, s Subject) Result {
	if l.log == nil {
		return Result{Outcome: l.Outcome, Problem: l.Problem, Name: s.Name}
	}
	if s.File == "" {
		return l.log.URL(ctx, s.URL, s.Name)
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return Result{Outcome: Unproven, Problem: err.Error(), Name: s.Name}
	}
	return l.log.Bytes(ctx, data, s.Name)
}
