package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/terminal"
	"github.com/larder-cdn/larder/logs/verify"
)

// verification has the flags of `larder verify`.
type verification struct {
	as        []string
	server    string
	key       string
	witnesses []string
	need      int
	all       bool
	known     string
	evidence  string
	proof     string
	timeout   time.Duration
	asJSON    bool
}

// exitOf are the exit codes of verdicts. The worse one is the larger.
var exitOf = map[verify.Outcome]int{
	verify.Proven: exitDone, verify.Published: exitDone, verify.Unproven: 3, verify.Stale: 4, verify.Withdrawn: 5, verify.Differs: 6, verify.Forked: 7,
}

// maxMemory is what the garbage collector keeps to where a server makes larder verify take more than usual.
const maxMemory = 160 << 20

func newVerify(a *cli) *cobra.Command {
	var v verification
	cmd := &cobra.Command{
		Use:   "verify URL|FILE...|--proof PROOF FILE|--evidence FILE",
		Short: "Prove that what a server sends is what its log says was published",
		Long: `Prove from anywhere, without trusting the server, that the bytes under a URL, in each coding, are the ones that its
public log says were published; or that a FILE, wherever it is from, has the bytes of the file that --as names.

Only the log's key is trusted. Give the key that the operator publishes with --key. Without it, verify accepts the key
that the server shows at the first use, says so, and remembers it. It also remembers the last checkpoint, so that later
runs find a log that was changed. Only witnesses can rule out that the server shows other clients another log:
--witness. Each file gets a verdict, and the exit code is that of the worst:

  proven      0  the bytes are those that were published, and were not withdrawn since
  unproven    3  it could not be found out: a witness, the network or a file is missing, or something took too long
  stale       4  the server shows an older state of the log than was seen before
  withdrawn   5  the release was withdrawn
  differs     6  something is not what the log says
  forked      7  the log's key has signed two logs that contradict each other; the evidence is kept in a file

Other exit codes: 1 failed, 2 a mistake in the command line.

--proof PROOF verifies a FILE without a network, by a proof that the log's server has under
/log/proof/PACKAGE/VERSION/PATH.tlog-proof. The verdict is published, with exit code 0, if the FILE is one that the log
says was published. Whether it was withdrawn since, no proof can tell. It needs --key.

--evidence FILE checks such a file, without a network. It answers forked if the file proves a fork of the log with
the key in --key (without it, with the key in the file), and unproven if not.

No server can make verify take more than 256 MB, or longer than --timeout. To check a data folder of your own, use
larder fsck. See docs/audit-log.md.`,
		Example: `  larder verify https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify --key log.pub https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify jquery.min.js --as jquery/3.7.1/jquery.min.js --server https://cdn.example.com
  larder verify jquery.min.js --proof jquery.min.js.tlog-proof --key log.pub
  larder verify --evidence fork-0a1b2c3d4e5f6071.json --key log.pub`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case v.proof != "" && v.evidence != "":
				return errors.New("--proof and --evidence cannot be given together")
			case v.proof != "":
				return arguments(1, 1)(cmd, args)
			case v.evidence == "":
				return arguments(1, -1)(cmd, args)
			case len(args) > 0:
				return fmt.Errorf("verify takes no URL or FILE besides --evidence, but got %q", args)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&v.as, "as", nil, "what a FILE has to be: a `URL`, or PACKAGE/VERSION/PATH with --server; once for each FILE, in their order")
	f.Var(settings.Base(&v.server), "server", "`URL` in front of /log/, if it is not the one in front of /ajax/libs/")
	f.StringVar(&v.key, "key", "", "the log's verifier `KEY`, or a file with it")
	f.StringArrayVar(&v.witnesses, "witness", nil, "verifier `KEY` of a witness that must have signed the checkpoint too, or a file with it; repeatable")
	f.Var(settings.Count(&v.need, 0), "witnesses", "how many of them are enough, `N`; if it is not given, all")
	f.BoolVar(&v.all, "all", false, "read every entry of a large log too, and compute from them what is live")
	f.DurationVar(&v.timeout, "timeout", time.Minute, "how long a server may take for one argument, with its log for the first one; after that, it is not asked for the others")
	f.StringVar(&v.known, "known-logs", "", "`FILE` of keys and checkpoints seen before; if it is not given, larder/known-logs in the user's configuration folder")
	f.StringVar(&v.proof, "proof", "", "verify the FILE by the `PROOF` (C2SP tlog-proof), without a network")
	f.StringVar(&v.evidence, "evidence", "", "check the `FILE` that an earlier run kept of a fork")
	f.BoolVar(&v.asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !f.Changed("witnesses") {
			v.need = len(v.witnesses)
		}
		subjects, err := v.prepare(args)
		if err != nil {
			return err
		}
		switch {
		case v.evidence != "":
			err = a.checkEvidence(v)
		case v.proof != "":
			err = a.checkProof(v, args[0])
		default:
			err = a.verify(cmd.Context(), v, subjects)
		}
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			err = errors.New("interrupted")
		}
		if err != nil && !errors.As(err, new(failure)) {
			err = failure{err}
		}
		return err
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

// prepare reads the arguments and the keys, and returns mistakes in the command line.
func (v *verification) prepare(args []string) ([]subject, error) {
	as := v.as
	if v.proof != "" {
		if as = nil; len(v.as) > 1 {
			return nil, errors.New("--proof is of one file, so there is at most one --as")
		}
		if v.key == "" {
			return nil, errors.New("--proof needs --key, because there is no server to ask for the log's key")
		}
		args = nil
	}
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
	if v.timeout <= 0 {
		return nil, errors.New("--timeout must be over 0")
	}
	if v.known == "" && v.evidence == "" && v.proof == "" {
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
		// The message must not quote the file, which may hold a private key.
		return "", fmt.Errorf("the file %s does not hold a verifier key, which is one line such as cdn.example.com/log+1a2b3c4d+AZ…; a key folder has it in log.pub", text)
	}
	return key, nil
}

// verifiedLog is a server's log and what verifying it found.
type verifiedLog struct {
	Server   string `json:"server"`
	Origin   string `json:"origin,omitempty"`
	Key      string `json:"key,omitempty"`
	FirstUse bool   `json:"firstUse"` // the key was accepted from the server
	Size     int64  `json:"size"`
	Root     string `json:"root,omitempty"`
	// Since is the checkpoint of an earlier run, which this one contains.
	Since        *seenBefore          `json:"since,omitempty"`
	Cosignatures []verify.Cosignature `json:"cosignatures"`
	// Outcome is why nothing is proven by the log, whatever its files are.
	Outcome  verify.Outcome `json:"outcome,omitempty"`
	Problem  string         `json:"problem,omitempty"`
	Evidence string         `json:"evidence,omitempty"` // the file that proves a fork

	log *verify.Log
	bar *terminal.Bar
}

type seenBefore struct {
	Size int64     `json:"size"`
	Time time.Time `json:"time"`
}

// verifiedFile is the outcome for one argument.
type verifiedFile struct {
	Subject string `json:"subject"`
	Server  string `json:"server"`
	verify.Result
	told bool // Problem has been printed, because it is the log's
}

// verify verifies the subjects and prints the outcome.
func (a *cli) verify(ctx context.Context, v verification, subjects []subject) error {
	debug.SetMemoryLimit(maxMemory)
	known, err := verify.ReadKnown(v.known)
	if err != nil {
		return err
	}
	logs := []*verifiedLog{}
	of := map[string]*verifiedLog{}
	files := []verifiedFile{}
	proven, worst := 0, verify.Proven
	for _, s := range subjects {
		limited, cancel := context.WithTimeout(ctx, v.timeout)
		log, ok := of[s.server]
		if !ok {
			if log, err = a.openLog(limited, v, known, s.server); err != nil {
				cancel()
				return err
			}
			of[s.server] = log
			logs = append(logs, log)
			if !v.asJSON && ctx.Err() == nil {
				log.print(a.stdout)
			}
		}
		file := verifiedFile{Subject: s.arg, Server: s.server, Result: log.check(limited, s)}
		file.told = file.Problem == log.Problem
		if limited.Err() != nil && log.log != nil && file.Outcome == verify.Unproven {
			log.log, log.Outcome, log.Problem = nil, verify.Unproven, tooLong(v)
			file.Outcome, file.Problem = verify.Unproven, log.Problem
		}
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if file.Outcome == verify.Proven {
			proven++
		}
		if exitOf[file.Outcome] > exitOf[worst] {
			worst = file.Outcome
		}
		files = append(files, file)
		if !v.asJSON {
			file.print(a.stdout)
		}
	}
	if v.asJSON {
		if err := printJSON(a.stdout, struct {
			Outcome verify.Outcome `json:"outcome"` // the worst of them
			Logs    []*verifiedLog `json:"logs"`
			Files   []verifiedFile `json:"files"`
		}{worst, logs, files}); err != nil {
			return err
		}
	}
	if proven < len(files) {
		return verdict{failure{fmt.Errorf("%d of %s proven", proven, count(len(files), "file is", "files are"))}, exitOf[worst]}
	}
	return nil
}

func tooLong(v verification) string {
	return fmt.Sprintf("the server took longer than %v; --timeout gives it more", v.timeout)
}

// openLog verifies a server's log and remembers its key and checkpoint. An error is that what is known could not be
// written.
func (a *cli) openLog(ctx context.Context, v verification, known *verify.Known, server string) (*verifiedLog, error) {
	l := &verifiedLog{Server: server, Cosignatures: []verify.Cosignature{}, bar: terminal.NewCountBar(a.stderr, "reading", "entries")}
	o := verify.Options{
		Server: server, All: v.all, Progress: l.bar.Show, UserAgent: "larder/" + app.Version(),
		Trust: verify.Trust{Key: v.key, Witnesses: v.witnesses, Need: v.need},
	}
	err := l.open(ctx, o, known)
	if err != nil {
		l.log, l.Outcome, l.Problem = nil, verify.OutcomeOf(err), err.Error()
		if ctx.Err() != nil {
			l.Outcome, l.Problem = verify.Unproven, tooLong(v)
		}
		var fork *verify.ForkError
		if errors.As(err, &fork) {
			l.Evidence, err = known.KeepEvidence(fork.Evidence)
			return l, err
		}
		return l, nil
	}
	if d := l.log.Doubt(); d != nil {
		l.Outcome, l.Problem = d.Outcome, d.Problem
	}
	return l, known.Remember(server, o.Trust.Key, l.log, time.Now())
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
	o.Known = func(key string) (verify.KnownLog, bool) {
		before, ok := known.OfKey(key)
		if ok {
			seen = before.Seen
		}
		return before, ok
	}
	l.Key = o.Trust.Key
	if l.log, err = verify.Open(ctx, o); err != nil {
		return err
	}
	l.Origin, l.Key, l.Size, l.Root = l.log.Origin(), l.log.Key(), l.log.Size(), l.log.Root().String()
	l.Cosignatures = append(l.Cosignatures, l.log.Cosignatures()...)
	if l.log.Seen() > 0 && !seen.IsZero() && l.log.Seen() <= l.Size {
		l.Since = &seenBefore{l.log.Seen(), seen}
	}
	return nil
}

// check verifies one argument.
func (l *verifiedLog) check(ctx context.Context, s subject) verify.Result {
	if l.log == nil {
		return verify.Result{Outcome: l.Outcome, Problem: l.Problem, Name: s.name}
	}
	defer l.bar.Close()
	if !s.local {
		return l.log.URL(ctx, s.arg, s.name)
	}
	data, err := os.ReadFile(s.arg)
	if err != nil {
		return verify.Result{Outcome: verify.Unproven, Problem: err.Error(), Name: s.name}
	}
	return l.log.Bytes(ctx, data, s.name)
}
