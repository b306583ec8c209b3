package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/coding"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		switch filepath.Base(os.Args[0]) {
		case stalls:
			_, _ = io.Copy(io.Discard, os.Stdin) // takes jobs and never answers
		case floods:
			_ = errors.Join(hello{Mapped: unusedAddressSpace()}.write(os.Stdout), writeFields(os.Stdout, nil))
			_, _ = os.Stdout.Write([]byte{0, 48, 0, 0}) // the length of 3 MiB
			time.Sleep(time.Hour)                       // it does not end by itself
		case starves:
			fmt.Fprintln(os.Stderr, "fatal error: runtime: cannot allocate memory")
			os.Exit(2)
		case tells:
			fmt.Fprintln(os.Stderr, strings.Join(os.Environ(), " ")) // which is what it dies of
			os.Exit(1)
		}
		confinedMain()
	}
	os.Exit(m.Run())
}

// Names under which this program is another child than Main makes of it.
const (
	stalls  = "stalls"
	tells   = "tells"
	floods  = "floods"
	starves = "starves"
)

// link returns this program under another name.
func link(t *testing.T, name string) string {
	t.Helper()
	program, err := os.Executable()
	path := filepath.Join(t.TempDir(), name)
	if err := errors.Join(err, os.Symlink(program, path)); err != nil {
		t.Fatal(err)
	}
	return path
}

func newPool(t *testing.T, o Options) *Pool {
	t.Helper()
	if o.Program == "" {
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		o.Program = program
	}
	p := NewPool(o)
	t.Cleanup(p.Close)
	return p
}

func TestMinify(t *testing.T) {
	p := newPool(t, Options{Size: 1})
	tests := []struct {
		name string
		task Task
		in   string
		want string // exactly, or an error that contains it after "error: "
	}{
		{"local names shrink", MinifyJS, "function f(long) {\n  return long + 1;\n}\n", "function f(n){return n+1}\n"},
		{"top-level names stay", MinifyJS, "var library = { a: 1 };\n", "var library={a:1};\n"},
		{"legal comments stay", MinifyJS, "/*! (c) the authors */\nvar a = 1; // why\n", "/*! (c) the authors */var a=1;\n"},
		{"modules stay modules", MinifyJS, "export const a = 1;\n", "export const a=1;\n"},
		{"style sheets", MinifyCSS, "/*! MIT */\na {\n  color: #ff0000;\n}\n", "/*! MIT */a{color:red}\n"},
		{"empty", MinifyJS, "", ""},
		{"does not parse", MinifyJS, "var =", "error: line 1, column 5: "},
		{"not UTF-8", MinifyJS, "var a = '\xff';", "error: not valid UTF-8"},
		{"a module that exports", FindFormat, "const a = 1\nexport { a }", "esm"},
		{"a module that imports", FindFormat, `import"./other.js"`, "esm"},
		{"import.meta", FindFormat, "console.log(import.meta.url)", "esm"},
		{"CommonJS", FindFormat, "module.exports = 1", "cjs"},
		{"a classic script", FindFormat, "var a = `\nexport default 1\n`; import('./other.js')", ""},
		{"no script", FindFormat, "export export", "error: line 1, column 8: "},
		{"no such task", "dance", "", "error: unknown task"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := p.Do(context.Background(), "owner", tt.task, []byte(tt.in))
			if want, ok := strings.CutPrefix(tt.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("got %q, %v, want an error with %q", got, err, want)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestSqueeze(t *testing.T) {
	p := newPool(t, Options{Size: 2, Nice: true})
	in := bytes.Repeat([]byte("var larder = 'a store for food';\n"), 400)
	var wg sync.WaitGroup
	for task, c := range map[Task]coding.Coding{SqueezeBr: coding.Brotli, SqueezeGzip: coding.Gzip} {
		wg.Go(func() {
			coded, err := p.Do(context.Background(), "owner", task, in)
			if err != nil {
				t.Error(err)
				return
			}
			back, err := coding.Decode(c, coded, int64(len(in)))
			if err != nil || !bytes.Equal(back, in) {
				t.Errorf("%s: decodes to %d bytes, %v", task, len(back), err)
			}
		})
	}
	wg.Wait()
}

func TestHostileJobCostsItselfOnly(t *testing.T) {
	p := newPool(t, Options{Size: 1})
	var crash *CrashError
	hostile := append(bytes.Repeat([]byte("!"), 1_000_000), 'a')
	if _, err := p.Do(context.Background(), "owner", MinifyJS, hostile); !errors.As(err, &crash) || crash.Killed {
		t.Errorf("%v, want a CrashError", err) // for a stack overflow, or what the race detector makes of it
	}
	if got, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); err != nil || string(got) != "a;\n" {
		t.Errorf("the job after it: %q, %v", got, err)
	}
}

func TestStalledJobEnds(t *testing.T) {
	program := link(t, stalls)
	p := newPool(t, Options{Program: program, Size: 1, Timeout: 50 * time.Millisecond})
	var crash *CrashError
	if _, err := p.Do(context.Background(), "owner", MinifyJS, nil); !errors.As(err, &crash) {
		t.Errorf("out of time: %v, want a CrashError", err)
	}
	p = newPool(t, Options{Program: program, Size: 1})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := p.Do(ctx, "owner", MinifyJS, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestResponseIsBounded checks that a child that was taken over cannot have its parent read more than its task returns.
func TestResponseIsBounded(t *testing.T) {
	p := newPool(t, Options{Program: link(t, floods), Size: 1, Timeout: time.Minute})
	for _, task := range []Task{Render, FindFormat, FindImports, MinifyJS, BuildModules} {
		var crash *CrashError
		if data, err := p.Do(context.Background(), "owner", task, []byte("a")); !errors.As(err, &crash) || !strings.Contains(crash.Reason, "over the limit") || crash.Killed || crash.TimedOut {
			t.Errorf("%s: %d bytes, %v, want a CrashError", task, len(data), err)
		}
	}
}

// TestEveryParserHasAProcessorTime holds that no task that parses has only the clock for a limit, which a busy machine shortens.
func TestEveryParserHasAProcessorTime(t *testing.T) {
	for _, task := range []Task{Render, MinifyJS, MinifyCSS, FindFormat, FindImports, BuildModules} {
		if limit := processorTimes[task]; limit == 0 || limit*4 > Timeout {
			t.Errorf("%s: %v of processor time, and %v by the clock", task, limit, Timeout)
		}
	}
}

func TestIsTransient(t *testing.T) {
	for _, tt := range []struct {
		err       error
		transient bool
	}{
		{&StartError{Err: errors.New("busy")}, true}, {fmt.Errorf("jar: %w", &CrashError{Killed: true}), true}, {&CrashError{TimedOut: true}, true},
		{&CrashError{Limited: true}, false}, {&CrashError{Reason: "stack overflow"}, false}, {errors.New("index.js: line 1: unexpected end"), false}, {nil, false},
	} {
		if got := IsTransient(tt.err); got != tt.transient {
			t.Errorf("%+v: %v", tt.err, got)
		}
	}
}

// TestLimitedJobs checks that a job is said to exceed its memory only if the child had read it.
func TestLimitedJobs(t *testing.T) {
	var crash *CrashError
	_, err := newPool(t, Options{Program: link(t, starves), Size: 1}).Do(context.Background(), "owner", MinifyJS, nil)
	if !errors.As(err, &crash) || crash.Limited || !IsTransient(err) {
		t.Errorf("a child without memory before it reads the job: %v, want a CrashError that is transient", err)
	}
}

func TestChildDoesNotGetSecrets(t *testing.T) {
	t.Setenv("GITHUB_TOKEN", "secret")
	t.Setenv("npm_config_//registry.example.com/:_authToken", "secret")
	t.Setenv("GOTRACEBACK", "none")
	var crash *CrashError
	if _, err := newPool(t, Options{Program: link(t, tells), Size: 1}).Do(context.Background(), "owner", MinifyJS, nil); !errors.As(err, &crash) {
		t.Fatalf("%v, want a CrashError with the environment", err)
	}
	var names []string
	for variable := range strings.FieldsSeq(crash.Reason) {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
		if !slices.Contains(inherited, name) {
			t.Errorf("the child has %s", name)
		}
	}
	if !slices.Contains(names, "GOTRACEBACK") {
		t.Errorf("the child has only %v", names)
	}
}

func TestProgramIsMissing(t *testing.T) {
	p := NewPool(Options{Program: "/nonexistent/larder", Size: 1})
	defer p.Close()
	for range 2 { // a failed start gives its place back
		var start *StartError
		if _, err := p.Do(context.Background(), "owner", MinifyJS, nil); !errors.As(err, &start) {
			t.Errorf("got %v", err)
		}
	}
}

// A budget ends the longest idle children, except for those that their owners are about to use.
func TestEndIdleChildren(t *testing.T) {
	p := newPool(t, Options{Size: 1, Children: 3})
	for _, owner := range []string{"a", "b", "c"} {
		if _, err := p.Do(context.Background(), owner, MinifyJS, []byte("a")); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.endIdleChildren(1, []string{"a"}); n != 1 || !slices.Equal(p.idleOwners(), []string{"a", "c"}) {
		t.Errorf("ended %d children, those of %q are idle", n, p.idleOwners())
	}
	if n := p.endIdleChildren(5, []string{"a"}); n != 1 || !slices.Equal(p.idleOwners(), []string{"a"}) {
		t.Errorf("ended %d children, those of %q are idle", n, p.idleOwners())
	}
	if _, err := p.Do(context.Background(), "a", MinifyJS, []byte("a")); err != nil {
		t.Error(err)
	}
}

// Releases whose files take turns keep their processes while there are no more of them than children.
func TestOwnersKeepTheirChildren(t *testing.T) {
	p := newPool(t, Options{Size: 1, Children: 3})
	started := map[int]bool{}
	for _, owner := range []string{"a", "b", "c", "b", "a", "c", "a"} {
		if _, err := p.Do(context.Background(), owner, MinifyJS, []byte("a")); err != nil {
			t.Fatal(err)
		}
		started[p.idle[len(p.idle)-1].cmd.Process.Pid] = true
	}
	if len(started) != 3 || len(p.idle) != 3 {
		t.Errorf("%d processes were started and %d are idle, want 3 and 3", len(started), len(p.idle))
	}
	if _, err := p.Do(context.Background(), "d", MinifyJS, []byte("a")); err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, c := range p.idle {
		owners = append(owners, c.owner)
	}
	if want := []string{"c", "a", "d"}; !slices.Equal(owners, want) {
		t.Errorf("idle are %v, want %v: the longest idle child ends", owners, want)
	}
}

func TestNiceChildIsNiceInEveryThread(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	p := newPool(t, Options{Size: 1, Nice: true})
	if _, err := p.Do(context.Background(), "owner", SqueezeBr, bytes.Repeat([]byte("larder "), 10_000)); err != nil {
		t.Fatal(err)
	}
	c := p.idle[0]
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
	if err != nil || len(stats) < 2 {
		t.Fatalf("%d threads, %v", len(stats), err)
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, fields, _ := strings.Cut(string(stat), ") ") // the name may have spaces
		if nice := strings.Fields(fields)[16]; nice != "19" {
			t.Errorf("%s: the priority is %s, want 19", name, nice)
		}
	}
}

// A service manager's stop reaches the children too; it is not theirs to obey.
func TestChildOutlivesTerm(t *testing.T) {
	p := newPool(t, Options{Size: 1})
	if _, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); err != nil {
		t.Fatal(err)
	}
	c := p.idle[0]
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); err != nil || string(got) != "a;\n" {
		t.Errorf("after SIGTERM: %q, %v", got, err)
	}
	c = p.idle[0]
	c.kill()
	var crash *CrashError
	if _, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); !errors.As(err, &crash) || !crash.Killed {
		t.Errorf("after SIGKILL: %v, want a CrashError that says so", err)
	}
}

func TestIsOutOfMemory(t *testing.T) {
	for reason, want := range map[string]bool{
		"out of memory":                   true,
		"runtime: cannot allocate memory": true,
		"SIGSEGV: segmentation violation: PC=0x4a1c2d m=3 sigcode=1 addr=0x0":  true,
		"SIGSEGV: segmentation violation: PC=0x4a1c2d m=3 sigcode=1 addr=0x18": false,
		"panic: runtime error: index out of range [0]":                         false,
		"stack overflow": false,
		"signal: killed": false,
	} {
		var stderr stderrHead
		for _, line := range strings.SplitAfter(strings.Replace(reason, "violation: ", "violation\n", 1)+"\n\ngoroutine 0 [idle]:\n", "\n") {
			_, _ = stderr.Write([]byte(line))
		}
		if got := isOutOfMemory(stderr.firstLine()); got != want {
			t.Errorf("isOutOfMemory(%q) = %v, want %v", reason, got, want)
		}
	}
}
