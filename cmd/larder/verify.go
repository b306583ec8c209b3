package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/logs/verify"
)

// verification is what `larder verify` is asked for.
type verification struct {
	as        []string
	server    string
	key       string
	witnesses []string
	need      int
	all       bool
	known     string
	asJSON    bool
}

func newVerify(a *app) *cobra.Command {
	var v verification
	cmd := &cobra.Command{
		Use:   "verify URL|FILE...",
		Short: "Prove that files are those which a server's log says were published",
		Long: `Prove from anywhere, without trusting the server, that the bytes under a URL, in each coding, are those that its
public log says were published; or that a FILE which somebody got has the bytes of the file that --as names.

Trusted is the log's key alone. Give the one that the operator publishes with --key. Without it, the key that the
server shows at the first use is taken, said aloud, and remembered; so is the last checkpoint, so that later runs
find a log that was changed. That a server shows one log to you and another one to others only witnesses can rule
out: --witness. The answer also says whether the whole log was read (--all, and always while it is small): otherwise
nothing proves that the release was not withdrawn. See docs/audit-log.md.

Exit codes: 0 all is proven, 1 something differs, was withdrawn or could not be proven, 2 a mistake in the command line.`,
		Example: `  larder verify https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify --key log.pub https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify jquery.min.js --as jquery/3.7.1/jquery.min.js --server https://cdn.example.com`,
		Args: arguments(1, -1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&v.as, "as", nil, "what a FILE is: a `URL`, or PACKAGE/VERSION/PATH with --server; once for each FILE, in their order")
	f.Var(baseValue(&v.server), "server", "`URL` in front of /log/, where it is not what is in front of /ajax/libs/")
	f.StringVar(&v.key, "key", "", "the log's verifier `KEY`, or a file with it")
	f.StringArrayVar(&v.witnesses, "witness", nil, "verifier `KEY` of a witness who has to sign the checkpoint too, or a file with it; repeatable")
	f.Var(countValue(&v.need, 0), "witnesses", "how many of them are enough, `N`; where it is not given, all")
	f.BoolVar(&v.all, "all", false, "read every entry of a large log too")
	f.StringVar(&v.known, "known-logs", "", "`FILE` of keys and checkpoints seen before; where it is not given, larder/known-logs in the user's folder for configuration")
	f.BoolVar(&v.asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !f.Changed("witnesses") {
			v.need = len(v.witnesses)
		}
		subjects, err := v.prepare(args)
		if err != nil {
			return err
		}
		err = a.verify(cmd.Context(), v, subjects)
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			err = errors.New("interrupted")
		}
		if err != nil {
			return failure{err}
		}
		return nil
	}
	return cmd
}

// A subject is one argument of `larder verify`.
type subject struct {
	arg    string
	local  bool   // a file, rather than a URL
	server string // where its log is
	name   verify.Name
}

// prepare finds the mistakes in the command line.
func (v *verification) prepare(args []string) ([]subject, error) {
	as := v.as
	var subjects []subject
	for _, arg := range args {
		s := subject{arg: arg, local: !isURL(arg)}
		named := arg
		if s.local {
			if len(as) == 0 {
				return nil, fmt.Errorf("%s is no URL; where it is a file, say with --as which one it has to be", arg)
			}
			named, as = as[0], as[1:]
		}
		var err error
		if isURL(named) {
			s.server, s.name, err = verify.ParseURL(named)
		} else if s.name, err = verify.ParseName(named); err == nil && v.server == "" {
			err = fmt.Errorf("--as %s needs --server, which says whose log to ask", named)
		}
		if err != nil {
			return nil, err
		}
		if v.server != "" {
			s.server = v.server
		}
		subjects = append(subjects, s)
	}
	if len(as) > 0 {
		return nil, fmt.Errorf("--as %s is for a file, and there is none left", as[0])
	}
	var err error
	if v.key, err = keyText(v.key, verify.CheckKey); err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	for i, w := range v.witnesses {
		if v.witnesses[i], err = keyText(w, verify.CheckWitness); err != nil {
			return nil, fmt.Errorf("--witness: %w", err)
		}
	}
	if v.need > len(v.witnesses) {
		return nil, fmt.Errorf("--witnesses asks for %d, and %s given with --witness", v.need, count(len(v.witnesses), "is", "are"))
	}
	if v.known == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil, fmt.Errorf("%w; say with --known-logs where to remember what was seen", err)
		}
		v.known = filepath.Join(dir, "larder", "known-logs")
	}
	return subjects, nil
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// keyText reads a key from the command line, or from the file that is named there.
func keyText(text string, check func(string) error) (string, error) {
	if text == "" || check(text) == nil {
		return text, nil
	}
	data, err := os.ReadFile(text)
	if err != nil {
		return "", fmt.Errorf("%w, and there is no such file", check(text))
	}
	key := strings.TrimSpace(string(data))
	if check(key) != nil {
		// What else is in it is nobody's business: messages end up where others read them.
		return "", fmt.Errorf("the file %s does not hold a verifier key, which is one line such as cdn.example.com/log+1a2b3c4d+AZ…; a key folder has it in log.pub", text)
	}
	return key, nil
}

// verifiedLog is a server's log as it was found.
type verifiedLog struct {
	Server   string `json:"server"`
	Origin   string `json:"origin,omitempty"`
	Key      string `json:"key,omitempty"`
	FirstUse bool   `json:"firstUse"` // the key is the server's own word
	Size     int64  `json:"size"`
	Root     string `json:"root,omitempty"`
	// Since is the checkpoint that was seen before, which this one contains.
	Since        *seenBefore          `json:"since,omitempty"`
	Cosignatures []verify.Cosignature `json:"cosignatures"`
	Problem      string               `json:"problem,omitempty"`
	Fork         *forkProof           `json:"fork,omitempty"`

	log     *verify.Log
	outcome verify.Outcome
	bar     *entryBar
}

type seenBefore struct {
	Size int64     `json:"size"`
	Time time.Time `json:"time"`
}

// forkProof are two checkpoints that contradict each other, for anybody to verify.
type forkProof struct {
	Seen  string `json:"seen"`
	Shown string `json:"shown"`
}

// verifiedFile is what one argument came to.
type verifiedFile struct {
	Subject string `json:"subject"`
	Server  string `json:"server"`
	verify.Result
	told bool // Problem, because it is the log's
}

// verify does what the command is for, and prints it.
func (a *app) verify(ctx context.Context, v verification, subjects []subject) error {
	known, err := verify.ReadKnown(v.known)
	if err != nil {
		return err
	}
	logs := []*verifiedLog{}
	of := map[string]*verifiedLog{}
	files := []verifiedFile{}
	proven := 0
	for _, s := range subjects {
		log, ok := of[s.server]
		if !ok {
			log = a.openLog(ctx, v, known, s.server)
			of[s.server] = log
			logs = append(logs, log)
			if err := ctx.Err(); err != nil {
				return err
			}
			if !v.asJSON {
				log.print(a.stdout)
			}
		}
		file := verifiedFile{Subject: s.arg, Server: s.server, Result: log.check(ctx, s), told: log.log == nil}
		if err := ctx.Err(); err != nil {
			return err
		}
		if file.Outcome == verify.Proven {
			proven++
		}
		files = append(files, file)
		if !v.asJSON {
			file.print(a.stdout)
		}
	}
	if v.asJSON {
		if err := printJSON(a.stdout, struct {
			Logs  []*verifiedLog `json:"logs"`
			Files []verifiedFile `json:"files"`
		}{logs, files}); err != nil {
			return err
		}
	}
	if proven < len(files) {
		return fmt.Errorf("%d of %s proven", proven, count(len(files), "file is", "files are"))
	}
	return nil
}

// openLog verifies a server's log, and remembers it.
func (a *app) openLog(ctx context.Context, v verification, known *verify.Known, server string) *verifiedLog {
	l := &verifiedLog{Server: server, Cosignatures: []verify.Cosignature{}, outcome: verify.Unproven, bar: a.newEntryBar("reading")}
	o := verify.Options{
		Server: server, All: v.all, Progress: l.bar.show, UserAgent: "larder/" + version(),
		Trust: verify.Trust{Key: v.key, Witnesses: v.witnesses, Need: v.need},
	}
	err := l.open(ctx, o, known)
	var fork *verify.ForkError
	switch {
	case err == nil:
		return l
	case errors.As(err, &fork):
		l.Fork = &forkProof{string(fork.Seen), string(fork.Shown)}
		l.outcome = verify.Differs
	case errors.As(err, new(*verify.Difference)):
		l.outcome = verify.Differs
	}
	l.log, l.Problem = nil, err.Error()
	return l
}

func (l *verifiedLog) open(ctx context.Context, o verify.Options, known *verify.Known) error {
	var err error
	if before, ok := known.OfServer(l.Server); o.Trust.Key == "" && ok {
		o.Trust.Key = before.Key
	}
	if o.Trust.Key == "" {
		l.FirstUse = true
		if o.Trust.Key, err = verify.FetchKey(ctx, o); err != nil {
			return fmt.Errorf("couldn't get the log's key: %w", err)
		}
	}
	var seen time.Time
	o.Seen = func(key string) []byte {
		before, ok := known.OfKey(key)
		if !ok || before.Checkpoint == "" {
			return nil
		}
		seen = before.Seen
		return []byte(before.Checkpoint)
	}
	l.Key = o.Trust.Key
	if l.log, err = verify.Open(ctx, o); err != nil {
		return err
	}
	l.Origin, l.Key, l.Size, l.Root = l.log.Origin(), l.log.Key(), l.log.Size(), l.log.Root().String()
	l.Cosignatures = append(l.Cosignatures, l.log.Cosignatures()...)
	if !seen.IsZero() {
		l.Since = &seenBefore{l.log.Seen(), seen}
	}
	return known.Remember(l.Server, o.Trust.Key, l.log, time.Now())
}

// check verifies one argument.
func (l *verifiedLog) check(ctx context.Context, s subject) verify.Result {
	failed := func(outcome verify.Outcome, problem string) verify.Result {
		return verify.Result{Outcome: outcome, Problem: problem, Name: s.name}
	}
	if l.log == nil {
		return failed(l.outcome, l.Problem)
	}
	defer l.bar.close()
	if !s.local {
		return l.log.URL(ctx, s.arg, s.name)
	}
	data, err := os.ReadFile(s.arg)
	if err != nil {
		return failed(verify.Unproven, err.Error())
	}
	return l.log.Bytes(ctx, data, s.name)
}
