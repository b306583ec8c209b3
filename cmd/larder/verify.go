package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// verification has the flags of `larder verify`. [verification.prepare] completes it.
type verification struct {
	as       []string
	server   string
	trust    verify.Trust
	all      bool
	upstream bool
	auditors []string
	audits   int // how many auditors are enough
	audited  []verify.Auditor
	osv      string
	own      []string
	sarif    bool
	known    string
	evidence string
	proof    string
	timeout  time.Duration
	asJSON   bool
}

// exitOf are the exit codes by the outcome of a verification.
var exitOf = map[verify.Outcome]int{
	verify.Proven: exitDone, verify.Published: exitDone, verify.Own: exitDone, verify.Nothing: exitAdvice, verify.Unproven: 3, verify.Stale: 4, verify.Withdrawn: 5, verify.Differs: 6, verify.Forked: 7, verify.Expired: 9,
}

// maxMemory is the soft memory limit of the Go runtime, in bytes, with which larder verify runs: garbage is collected more
// often if a server makes it use more than usual.
const maxMemory = 160 << 20

// newVerify returns the command `larder verify`, which verifies URLs and files, a page, a proof or evidence. The exit code says
// what was found, see exitOf.
func newVerify(a *cli) *cobra.Command {
	v := verification{trust: verify.Trust{MaxAge: verify.DefaultMaxAge}}
	cmd := &cobra.Command{
		Use:   "verify URL|FILE...|PAGE|--proof PROOF FILE|--evidence FILE",
		Short: "Prove that what a server sends is what its log says was published",
		Long: `Prove from anywhere, without trusting the server, that the bytes under a URL, in each coding, are the ones that its
public log says were published; or that a FILE, wherever it is from, has the bytes of the file that --as names.

Only the log's key is trusted. Give the key that the operator publishes with --key, or the offline root key with
--root. Without one, verify accepts the key that the server shows at the first use, says so, and remembers it. It also
remembers the last checkpoint, so that later runs find a log that was changed. Only witnesses can rule out that the
server shows other clients another log: --witness. Each file gets a verdict, and the exit code is that of the worst:

  proven      0  the bytes are those that were published, and were not withdrawn since
  unproven    3  it could not be found out: a witness, the network or a file is missing, or something took too long
  stale       4  the server shows an older state of the log than was seen before
  withdrawn   5  the release was withdrawn
  differs     6  something is not what the log says
  forked      7  the log's key has signed two logs that contradict each other; the evidence is kept in a file
  expired     9  nothing that is at most --max-age old says that this is the newest state of the log

Other exit codes: 1 failed, 2 a mistake in the command line.

A log cosigns its newest state every hour, and so do its witnesses, so nothing can show an old state forever to hide a
withdrawal. Every verdict says how old the newest cosignature is. With --witness, as many witnesses as are required must
have cosigned within --max-age. Larder 0.1 does not cosign, so the age of its log is unknown: --max-age 0 accepts any
age.

--upstream also asks npm, or the git repository, whether the log tells the truth: the archive that npm has must be the
one in the log, with npm's signature, and every file of the release must be in it, byte for byte. Files that were
minified here are minified again, if the log says with what and this larder has the same. Only then are they said to be
as npm had them. --auditor asks others, who did that before: see larder audit. One who found a difference is enough for
the verdict differs; without the word of --auditors N of them, a file is unproven.

A PAGE is the URL of a web page or a FILE.html, read as browsers read it. Every script, style sheet, preload, imported
module and frame is verified, with its integrity attribute. With --server, all files under /ajax/libs/ are compared with
the log there, whatever host the page loads them from, such as cdnjs.cloudflare.com; without it only with logs that were
seen before, or that --key signs. Everything else that can run code is unproven, except inline scripts and addresses
that begin with an --own PREFIX: these are listed as own. A page without proven files is own (exit code 0), or nothing
(8) if it loads and runs nothing. Exit code 8 also means: all is proven, but browsers do not check or use a file as its
tag says, or a version is known to be vulnerable (--osv).

--proof PROOF verifies a FILE without a network, by a proof that the log's server has under
/log/proof/PACKAGE/VERSION/PATH.tlog-proof. The verdict is published, with exit code 0, if the FILE is one that the log
says was published. Whether it was withdrawn since, no proof can tell. It needs --key.

--evidence FILE checks such a file, without a network. It answers forked if the file proves a fork of the log with
the key in --key (without it, with the key in the file), and unproven if not.

No server can make verify take more than 256 MB, or longer than --timeout. To check a data folder of your own, use
larder fsck. See docs/audit-log.md.`,
		Example: `  larder verify https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify --key log.pub https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify --upstream https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js
  larder verify --server https://cdn.example.com --osv osv.json index.html
  larder verify jquery.min.js --as jquery/3.7.1/jquery.min.js --server https://cdn.example.com
  larder verify jquery.min.js --proof jquery.min.js.tlog-proof --key log.pub
  larder verify --evidence fork-0a1b2c3d4e5f6071.json --key log.pub`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case v.proof != "" && v.evidence != "":
				return errors.New("--proof and --evidence cannot be given together")
			case v.proof != "":
				return checkArgumentCount(1, 1)(cmd, args)
			case v.evidence == "":
				return checkArgumentCount(1, -1)(cmd, args)
			case len(args) > 0:
				return fmt.Errorf("verify takes no URL or FILE besides --evidence, but got %q", args)
			}
			return nil
		},
	}
	a.addFlags(cmd, []string{"config", "allow-host", "sigstore-root", "github-url"})
	f := cmd.Flags()
	f.StringArrayVar(&v.as, "as", nil, "what a FILE has to be: a `URL`, or PACKAGE/VERSION/PATH with --server; once for each FILE, in their order")
	f.Var(settings.BaseURLValue(&v.server), "server", "`URL` in front of /log/, if it is not the one in front of /ajax/libs/")
	addKeyFlags(f, &v.trust)
	addWitnessFlag(f, &v.trust)
	f.Var(settings.CountValue(&v.trust.Need, 0), "witnesses", "how many of them are enough, `N`; if it is not given, all")
	f.BoolVar(&v.all, "all", false, "read every entry of a large log too, and compute from them what is live")
	f.BoolVar(&v.upstream, "upstream", false, "compare with what npm has, or the git repository, too: the archive, every file of it, and what was made of them here")
	f.StringArrayVar(&v.auditors, "auditor", nil, "an auditor who must have found the files to be upstream's: `STATEMENT#KEY`, the URL or file of its statement, and its key or a file with it; repeatable")
	f.Var(settings.CountValue(&v.audits, 0), "auditors", "how many of them are enough, `N`; if it is not given, all")
	f.DurationVar(&v.timeout, "timeout", time.Minute, "how long a server may take for one argument, with its log for the first one; after that, it is not asked for the others")
	f.Var(settings.DurationValue(&v.trust.MaxAge, 0), "max-age", "how old the newest cosignature of the log may be; 0 for any age. A --proof may be of any age if this is not given")
	addKnownLogsFlag(f, &v.known)
	f.StringVar(&v.proof, "proof", "", "verify the FILE by the `PROOF` (C2SP tlog-proof), without a network")
	f.StringVar(&v.evidence, "evidence", "", "check the `FILE` that an earlier run kept of a fork")
	f.StringVar(&v.osv, "osv", "", "for a PAGE: known vulnerabilities, a `FILE` or URL with OSV data (a record, a list, or a zip archive of npm's)")
	f.StringArrayVar(&v.own, "own", nil, "for a PAGE: `PREFIX` of addresses that are the page's own, a URL or relative to the page, such as /; repeatable")
	f.BoolVar(&v.sarif, "sarif", false, "for a PAGE: print SARIF, which tools show beside its lines")
	f.BoolVar(&v.asJSON, "json", false, "print JSON")
	return withAction(cmd, withoutSettings(func(ctx context.Context, args []string) error {
		if v.proof != "" && !f.Changed("max-age") {
			v.trust.MaxAge = 0
		}
		page := len(args) == 1 && len(v.as) == 0 && v.proof == "" && verify.IsPage(args[0])
		if !page && (v.osv != "" || v.sarif || len(v.own) > 0) {
			return settings.Mistakef("--osv, --own and --sarif are for a page, and one page only")
		}
		var prepared []string
		if !page {
			prepared = args
		}
		subjects, err := v.prepare(prepared, f.Changed)
		switch {
		case err != nil:
			return settings.Mistake{Err: err}
		case v.evidence != "":
			return a.verifyEvidence(v)
		case v.proof != "":
			return a.verifyProof(v, args[0])
		case page:
			return a.verifyPage(ctx, v, args[0])
		}
		return a.verifySubjects(ctx, v, subjects)
	}))
}

// A subject is one argument of `larder verify`, and the URL or file that it names.
type subject struct {
	arg string
	verify.Subject
}

// prepare parses args, URLs or FILEs, into subjects, in their order, and completes v: it reads the keys that the flags name
// and, unless --proof or --evidence is given, sets the default of --known-logs. With --proof it ignores args and returns no
// subjects; for a page the caller passes no args. given reports whether a flag was given: without --witnesses or --auditors, all of them are
// required. No args give no subjects and no error. The error is a mistake in the command
// line.
func (v *verification) prepare(args []string, given func(flag string) bool) ([]subject, error) {
	as := v.as
	if v.proof != "" {
		if as = nil; len(v.as) > 1 {
			return nil, errors.New("--proof is of one file, so there is at most one --as")
		}
		if v.trust.Key == "" {
			return nil, errors.New("--proof needs --key, because there is no server to ask for the log's key")
		}
		args = nil
	}
	var subjects []subject
	for _, arg := range args {
		s := subject{arg: arg}
		named := arg
		if s.URL = arg; !verify.IsURL(arg) {
			s.URL, s.File = "", arg
			if len(as) == 0 {
				return nil, fmt.Errorf("%s is no URL; where it is a file, say with --as which one it has to be", arg)
			}
			named, as = as[0], as[1:]
		}
		var err error
		if verify.IsURL(named) {
			s.Server, s.Name, err = verify.ParseURL(named)
		} else if s.Name, err = verify.ParseName(named); err == nil && v.server == "" {
			err = fmt.Errorf("--as %s needs --server, which says whose log to ask", named)
		}
		if err != nil {
			return nil, err
		}
		if v.server != "" {
			s.Server = v.server
		}
		subjects = append(subjects, s)
	}
	if len(as) > 0 {
		return nil, fmt.Errorf("--as %s is for a FILE that is not given", as[0])
	}
	if err := errors.Join(v.prepareTrust(given("witnesses")), v.prepareAuditors(given("auditors"))); err != nil {
		return nil, err
	}
	if v.timeout <= 0 {
		return nil, errors.New("--timeout must be over 0")
	}
	if v.evidence == "" && v.proof == "" {
		return subjects, setKnownLogs(&v.known)
	}
	return subjects, nil
}

// prepareTrust replaces files of keys in the flags by the keys, and sets how many witnesses are required: if given is true, the
// number in --witnesses, which must not be over that of the witnesses, else all. It also returns an error if --root is given
// along with --proof or --evidence.
func (v *verification) prepareTrust(given bool) error {
	need := v.trust.Need
	if err := readTrustedKeys(&v.trust); err != nil {
		return err
	}
	if v.trust.Root != "" && (v.proof != "" || v.evidence != "") {
		return errors.New("--root needs a server, which --proof and --evidence do not ask")
	}
	if given && need > v.trust.Need {
		return fmt.Errorf("--witnesses asks for %d, and %s given with --witness", need, formatCount(v.trust.Need, "is", "are"))
	}
	if given {
		v.trust.Need = need
	}
	return nil
}

// addKeyFlags adds the flags --key and --root, which set Key and Root in t to a key or the path of a file with it.
// [readTrustedKeys] reads the files.
func addKeyFlags(f *pflag.FlagSet, t *verify.Trust) {
	f.StringVar(&t.Key, "key", "", "the log's verifier `KEY`, or a file with it; without it, the one that was seen first counts")
	f.StringVar(&t.Root, "root", "", "verifier `KEY` of the log's offline root key, or a file with it, whose list of keys counts in place of --key")
}

// addWitnessFlag adds the flag --witness, which adds to Witnesses in t a witness's key or the path of a file with it.
// [readTrustedKeys] reads the files.
func addWitnessFlag(f *pflag.FlagSet, t *verify.Trust) {
	f.StringArrayVar(&t.Witnesses, "witness", nil, "verifier `KEY` of a witness that must have signed each checkpoint too, or a file with it; repeatable")
}

// readTrustedKeys replaces paths in t by the keys in these files, and sets Need to the number of different witnesses. Both a
// Key and a Root are an error. An error is a [settings.Mistake] in the flags of [addKeyFlags] and [addWitnessFlag].
func readTrustedKeys(t *verify.Trust) (err error) {
	if t.Key, err = verify.ReadKey(t.Key); err != nil {
		return settings.Mistakef("--key: %w", err)
	}
	if t.Root, err = verify.ReadKey(t.Root); err != nil {
		return settings.Mistakef("--root: %w", err)
	}
	if t.Root != "" && t.Key != "" {
		return settings.Mistakef("--root counts in place of --key: give one of the two")
	}
	if t.Witnesses, err = verify.ReadWitnessKeys(t.Witnesses); err != nil {
		return settings.Mistakef("--witness: %w", err)
	}
	t.Need = len(t.Witnesses)
	return nil
}

// addKnownLogsFlag adds the flag --known-logs, which sets file. The default is "", for which [setKnownLogs] sets the path.
func addKnownLogsFlag(f *pflag.FlagSet, file *string) {
	f.StringVar(file, "known-logs", "", "`FILE` of keys and checkpoints seen before; if it is not given, larder/known-logs in the user's configuration folder")
}

// setKnownLogs sets the path of the file of known logs to the one in the user's configuration folder, unless it is set. It
// creates nothing. An error is a [settings.Mistake]: that folder is unknown.
func setKnownLogs(file *string) error {
	if *file != "" {
		return nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return settings.Mistakef("%w; say with --known-logs where to remember what was seen", err)
	}
	*file = filepath.Join(dir, "larder", "known-logs")
	return nil
}

// prepareAuditors parses the values of --auditor into v.audited, and reads the keys, but no statements. given says that
// --auditors is given: then v.audits, the number of auditors that are required, must not be over that of different keys.
// Otherwise it sets v.audits to that number.
func (v *verification) prepareAuditors(given bool) error {
	for _, argument := range v.auditors {
		auditor, err := verify.ParseAuditor(argument)
		if err != nil {
			return fmt.Errorf("--auditor: %w", err)
		}
		v.audited = append(v.audited, auditor)
	}
	auditors := verify.CountAuditors(v.audited)
	if !given {
		v.audits = auditors
	}
	if v.audits > auditors {
		return fmt.Errorf("--auditors requires %d, and --auditor names %s; each key counts once, whatever statements it has signed", v.audits, formatCount(auditors, "auditor", "auditors"))
	}
	return nil
}

// verifySubjects verifies URLs and files, prints the verdicts, and stores in the file of known logs what was verified of their
// logs, with the keys that were accepted at first use. If not all are proven, it returns a [verdict] with the exit code of the
// worst. Other errors are those of [cli.newSession] and of writing JSON, or say that the known logs cannot be written, or that
// ctx has ended.
func (a *cli) verifySubjects(ctx context.Context, v verification, subjects []subject) error {
	session, done, err := a.newSession(v)
	if err != nil {
		return err
	}
	defer done()
	files := []fileVerdict{}
	proven, worst := 0, verify.Proven
	for _, s := range subjects {
		log, result, err := session.Verify(ctx, s.Subject)
		if err != nil {
			return err
		}
		file := fileVerdict{Subject: s.arg, Server: s.Server, Result: result, Printed: result.Problem == log.Problem}
		if file.Outcome == verify.Proven {
			proven++
		}
		worst = verify.Worse(worst, file.Outcome)
		files = append(files, file)
		if !v.asJSON {
			file.Print(a.stdout)
		}
	}
	if v.asJSON {
		if err := printJSON(a.stdout, struct {
			Outcome verify.Outcome       `json:"outcome"` // the worst of them
			Logs    []*verify.SessionLog `json:"logs"`
			Files   []fileVerdict        `json:"files"`
		}{worst, session.Logs(), files}); err != nil {
			return err
		}
	}
	if proven < len(files) {
		return verdict{fmt.Errorf("%d of %s proven", proven, formatCount(len(files), "file is", "files are")), exitOf[worst]}
	}
	return nil
}

// newSession returns a session that verifies by the flags, and a function that closes what it uses, nil after an error. The
// session prints what is known of each log, unless the output is JSON or SARIF. With --upstream, newSession loads the settings.
// It also sets the memory limit of the process to maxMemory, for good.
func (a *cli) newSession(v verification) (*verify.Session, func(), error) {
	debug.SetMemoryLimit(maxMemory)
	known, err := verify.ReadKnown(v.known)
	if err != nil {
		return nil, nil, err
	}
	bar := newCountBar(a.stderr, "reading", "entries")
	s := &verify.Session{Known: known, Timeout: v.timeout, Idle: bar.Close, Options: verify.Options{
		All: v.all, Progress: bar.Show, UserAgent: app.UserAgent(),
		Trust: v.trust, Auditors: v.audited, NeedAuditors: v.audits,
	}}
	if !v.asJSON && !v.sarif {
		s.Opened = func(l *verify.SessionLog) { writeSessionLog(a.stdout, l) }
	}
	if !v.upstream {
		return s, func() {}, nil
	}
	if err := a.settings.Load(a.environ); err != nil {
		return nil, nil, settings.Mistake{Err: err}
	}
	auditor, end, err := app.OpenAuditor(a.settings, a.quietLogger())
	if err != nil {
		return nil, nil, err
	}
	s.Options.Upstream = auditor
	return s, end, nil
}

// verifyProof verifies a file without a network by the proof that the flags name, and prints the result. If --as is given, the
// file must have that PACKAGE/VERSION/PATH. If the file was not proven to be published, it returns a [verdict] with the exit
// code. Other errors say that a file cannot be read.
func (a *cli) verifyProof(v verification, file string) error {
	var name verify.Name
	var err error
	if len(v.as) > 0 {
		if named := v.as[0]; verify.IsURL(named) {
			_, name, err = verify.ParseURL(named)
		} else {
			name, err = verify.ParseName(named)
		}
		if err != nil {
			return settings.Mistake{Err: fmt.Errorf("--as: %w", err)}
		}
	}
	found := checkedProof{Subject: file, Proof: v.proof}
	if found.Result, err = v.trust.VerifyProofFile(v.proof, file, name); err != nil {
		return err
	}
	if !v.asJSON {
		found.print(a.stdout)
	} else if err := printJSON(a.stdout, found); err != nil {
		return err
	}
	if found.Outcome != verify.Published {
		return verdict{errors.New("the proof does not prove that the file was published"), exitOf[found.Outcome]}
	}
	return nil
}

// checkedProof is what a proof proves about a file, and its JSON form.
type checkedProof struct {
	Subject string `json:"subject"`
	Proof   string `json:"proof"`
	verify.Result
}

// print writes for people what the proof proves about the file or, if that is not proven to be published, why not.
func (p checkedProof) print(w io.Writer) {
	if p.Outcome != verify.Published {
		fmt.Fprintf(w, "%s: %s: %s\n", p.Outcome, p.Subject, text.Plain(p.Problem))
		return
	}
	fmt.Fprintf(w, "%s: %s: it is %s\n", p.Outcome, p.Subject, text.Plain(p.Name.String()))
	fmt.Fprintf(w, "  %s bytes, %s\n", humanize.Comma(p.Size), p.SRI)
	fmt.Fprintf(w, "  published by entry %d on %s\n", p.Result.Published.Entry, p.Result.Published.Time.Local().Format(time.DateTime))
	fmt.Fprintf(w, "  by a log that was %s\n", verify.DescribeAge(p.Cosigned, time.Now()))
	fmt.Fprintln(w, "  whether it was withdrawn since, only the log's server tells: larder verify URL")
}

// verifyEvidence verifies a file of evidence without a network, and prints what it proves. It always returns an error: a
// [verdict] with the exit code, which says whether the log has forked, or why the file cannot be read.
func (a *cli) verifyEvidence(v verification) error {
	found, err := verify.VerifyEvidence(v.evidence, v.trust.Key)
	if err != nil {
		return err
	}
	if !v.asJSON {
		writeEvidence(a.stdout, found)
	} else if err := printJSON(a.stdout, found); err != nil {
		return err
	}
	message := "the file proves no fork"
	if found.Outcome == verify.Forked {
		message = "the log has forked"
	}
	return verdict{errors.New(message), exitOf[found.Outcome]}
}

// exitAdvice is the exit code if no outcome is bad but something needs attention: a page with another problem, or that loads
// and runs nothing, or an event in a watched log.
const exitAdvice = 8

// verifyPage verifies what the web page at the URL or path at loads, and prints the report. If the outcome is neither
// proven nor own, or a finding is an error, or the page loads and runs nothing, it returns a [verdict] with the exit code. Own code is
// not proven, and no reason for one. Other errors are as of
// [cli.verifySubjects], or say that the page or the data of --osv cannot be read.
func (a *cli) verifyPage(ctx context.Context, v verification, at string) error {
	session, done, err := a.newSession(v)
	if err != nil {
		return err
	}
	defer done()
	imports, end := app.OpenImports()
	defer end()
	o := verify.PageOptions{Server: v.server, Imports: imports, Own: v.own}
	if v.osv != "" {
		if o.Advisories, err = verify.ReadAdvisories(ctx, session.Options, v.osv); err != nil {
			return fmt.Errorf("--osv: %w", err)
		}
	}
	report, err := session.VerifyPage(ctx, at, o)
	if err != nil {
		return err
	}
	switch {
	case v.sarif:
		err = writePageSARIF(a.stdout, report, app.Version())
	case v.asJSON:
		err = printJSON(a.stdout, report)
	default:
		writePageReport(a.stdout, report)
	}
	if err != nil {
		return err
	}
	code := exitOf[report.Outcome]
	if code == exitDone && report.Errors > 0 {
		code = exitAdvice
	}
	if report.Outcome == verify.Nothing {
		return verdict{errors.New("the page loads nothing that could be verified"), code}
	}
	if code != exitDone {
		return verdict{fmt.Errorf("%s with the page", formatCount(report.Errors, "thing is wrong", "things are wrong")), code}
	}
	return nil
}
