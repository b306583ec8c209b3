// Package worker processes untrusted bytes in child processes: it minifies, recompresses, and renders documents for pages.
//
// A parser that crashes on a hostile file ends its process: a megabyte of "!" overflows the stack of a recursive JavaScript parser, from which
// Go cannot recover. In a child, a job that crashes, stalls or needs more memory than [Memory] allows costs that job an error and the bot
// nothing. A child works for one owner, which is a release, so a job that takes over its process reaches no other release. A child may run at
// the lowest priority.
//
// Before it reads the first byte, a child gives up for good what it does not need. On Linux it cannot open files or sockets, start
// processes, signal others, raise its limits, or map memory that these do not count (Landlock, a system-call filter). [Unprotected] returns
// which of these protections a system lacks. A child that cannot apply what the system has runs no job. A child has none of the
// parent's descriptors besides its pipes, and only those environment variables that Go itself reads.
//
// The package also has what its children run: the minifier, the builder of ES modules, and the renderers of READMEs, source,
// comparisons, imports and ranges of versions. Their output is not trusted: package document, and the callers that request modules, check it
// again. The package must not know stores or HTTP.
package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/evanw/esbuild/pkg/cli"

	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A Task says what a job does with its bytes.
type Task string

// The tasks.
const (
	MinifyJS    Task = "minify-js"
	MinifyCSS   Task = "minify-css"
	FindFormat  Task = "find-format"  // returns "esm", "cjs", or nothing for a script that is neither
	FindImports Task = "find-imports" // returns a JSON array of the specifiers that a module imports
	Render      Task = "render"       // has a [document.Request] and a [document.Result] in JSON
	SqueezeBr   Task = "squeeze-br"
	SqueezeGzip Task = "squeeze-gzip"
	// BuildModules has a [ModulesRequest] as its input and a [ModulesResult] as its result, in JSON.
	BuildModules Task = "build-modules"
	EncodeDelta  Task = "encode-delta" // has the input of JoinDelta
)

// An addressUse is how much address space a process has mapped, in bytes, whether it uses it or not.
type addressUse struct {
	All  int64
	Data int64 // private and writable
}

// A hello is the greeting that a child writes to its standard output first.
type hello struct {
	Mapped  addressUse // what the child has mapped but does not use
	Failure string     // why the child runs no jobs
}

// A request is a job that a parent sends to its child.
type request struct {
	Task   Task
	Data   []byte
	Memory int64 // of the whole child, in bytes
}

// A response is what a child sends to its parent after a job: Data, or Error, which is "" if the job succeeded.
type response struct {
	Data  []byte
	Error string
}

// runRequest runs the task of a request in this process, which is a child. An error of the task, or an unknown task, becomes the
// error of the response, cut to headSize bytes, without data. It does not recover from a panic.
func runRequest(r request) response {
	data, err := runTask(r.Task, r.Data)
	if err != nil {
		return response{Error: text.Cut(err.Error(), headSize)}
	}
	return response{Data: data}
}

// tasks are the functions of children. Tests add some that try what is not allowed.
var tasks = map[Task]func(data []byte) ([]byte, error){
	MinifyJS:    func(data []byte) ([]byte, error) { return minify(data, api.LoaderJS) },
	MinifyCSS:   func(data []byte) ([]byte, error) { return minify(data, api.LoaderCSS) },
	FindFormat:  findFormat,
	FindImports: findImports,
	Render:      runRender,
	SqueezeBr:   func(data []byte) ([]byte, error) { return coding.Encode(coding.Brotli, coding.Best, data) },
	SqueezeGzip: func(data []byte) ([]byte, error) { return coding.Encode(coding.Gzip, coding.Best, data) },

	BuildModules: runBuildModules,
	EncodeDelta:  encodeDelta,
}

// runTask runs a task on data in this process, which is a child, and returns its result. It returns an error for an unknown task.
// It applies no limit, and does not recover from a panic.
func runTask(t Task, data []byte) ([]byte, error) {
	if task, ok := tasks[t]; ok {
		return task(data)
	}
	return nil, fmt.Errorf("unknown task %q", t)
}

// Small is the memory that every child may have, in bytes. It is enough for most jobs.
const Small = 32 << 20

// RenderMemory is what a child that renders a document may have, in bytes.
const RenderMemory = 128 << 20

// The processor time that jobs may use. A busy machine does not shorten it. The first job of a child includes its start.
const (
	RenderTime  = 2 * time.Second
	ScriptTime  = 20 * time.Second // far more than an honest file that is minified needs
	ModulesTime = 2 * time.Minute
)

// processorTimes are the limits of the tasks that have one.
var processorTimes = map[Task]time.Duration{
	Render: RenderTime, MinifyJS: ScriptTime, MinifyCSS: ScriptTime, FindFormat: ScriptTime, FindImports: ScriptTime, BuildModules: ModulesTime,
}

// Timeout is the limit by the clock for jobs whose results are published. It ends only jobs that hang, or wait for a processor
// for most of the time.
const Timeout = 10 * time.Minute

// minifierMemory is the measured memory of the minifier for each byte of a file.
const minifierMemory = 170

// Memory returns the limit of memory, in bytes, for the whole child that runs a task on an input of size bytes. Where the system
// can limit it (Linux), a child that needs more ends. The program's own pages, which all children share, do not count.
func Memory(t Task, size int64) int64 {
	switch t {
	case Render:
		return RenderMemory
	case EncodeDelta:
		resident := coding.DeltaMemory(size)
		return resident + resident/2
	case MinifyJS, MinifyCSS, FindFormat, FindImports:
		return max(Small, 16<<20+minifierMemory*size)
	case BuildModules:
		return ModulesMemory + 6*size
	default:
		// The estimate is of resident memory. More is mapped, because the heap has free blocks.
		resident := coding.Memory(coding.Brotli, coding.Best, size)
		return max(Small, resident+min(resident/2, 40<<20))
	}
}

// minifier is the options of esbuild's command line with which files are minified, so that anyone can make them again. Top-level
// names stay, because other scripts use them. Characters stay, because escapes would double what is not ASCII.
const minifier = "--minify --target=esnext --charset=utf8 --legal-comments=inline --tree-shaking=false"

// minifierVersion is the version of the module in go.mod, which a test checks. esbuild does not export it.
const minifierVersion = "0.28.2"

// Minifier returns the program that minifies files here ("esbuild"), its version, and its command-line options, so that a
// verifier who runs the same program gets the same bytes.
func Minifier() (program, version, options string) {
	return "esbuild", minifierVersion, minifier
}

// minifierOptions parses the constant minifier once, and returns the options.
var minifierOptions = sync.OnceValues(func() (api.TransformOptions, error) {
	return cli.ParseTransformOptions(strings.Fields(minifier))
})

// minify returns a script or style sheet that means the same as data, usually a smaller one, with its legal comments. loader says
// which of the two data is. It refuses input that is not UTF-8, does not parse, or would take the minifier long, and checks that
// the output parses.
func minify(data []byte, loader api.Loader) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8, so minifying would change it")
	}
	check := checkScriptCost
	if loader == api.LoaderCSS {
		check = checkStyles
	}
	if err := check(data); err != nil {
		return nil, err
	}
	options, err := minifierOptions()
	if err != nil {
		return nil, err
	}
	options.Loader, options.LogLevel, options.LogOverride = loader, api.LogLevelSilent, silentWarnings
	out := api.Transform(string(data), options)
	if len(out.Errors) > 0 {
		return nil, newParseError(out.Errors[0])
	}
	// Without white space and long names, whose cost grows with the square of the depth of blocks and functions.
	again := api.Transform(string(out.Code), api.TransformOptions{Loader: loader, Target: api.ESNext, MinifyWhitespace: true, MinifyIdentifiers: true, LogLevel: api.LogLevelSilent, LogOverride: silentWarnings})
	if len(again.Errors) > 0 {
		return nil, fmt.Errorf("the minified form does not parse: %w", newParseError(again.Errors[0]))
	}
	return out.Code, nil
}

// findFormat is the function of the task [FindFormat]. data is a script. It returns the module format that the script's syntax
// shows, as esbuild names it: "esm" for import or export, "cjs" for exports or module, else no bytes. It fails if the script does
// not parse or would take esbuild long.
func findFormat(data []byte) ([]byte, error) {
	in, err := readMetadata(data)
	return []byte(in.Format), err
}

// findImports is the function of the task [FindImports]. data is a script. It returns a JSON array, perhaps empty or with
// repetitions, of the specifiers, such as "./a.js", that the script imports or re-exports statically, or imports dynamically by a
// constant string; calls of require do not count. It fails if the script does not parse or would take esbuild long.
func findImports(data []byte) ([]byte, error) {
	in, err := readMetadata(data)
	if err != nil {
		return nil, err
	}
	imports := []string{}
	for _, i := range in.Imports {
		if i.Kind == "import-statement" || i.Kind == "dynamic-import" {
			imports = append(imports, i.Path)
		}
	}
	return json.Marshal(imports)
}

// scriptMetadata is the metadata that esbuild reports about a script.
type scriptMetadata struct {
	Format  string `json:"format"`
	Imports []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"imports"`
}

// readMetadata has esbuild parse a script, and returns its module format ("esm", "cjs" or "") and its imports of all kinds, calls
// of require included. It returns an error if the script does not parse or would take esbuild long.
func readMetadata(data []byte) (scriptMetadata, error) {
	const name = "script.js"
	if err := checkScriptCost(data); err != nil {
		return scriptMetadata{}, err
	}
	out := api.Build(api.BuildOptions{
		Stdin:    &api.StdinOptions{Contents: string(data), Sourcefile: name, Loader: api.LoaderJS},
		Bundle:   true,          // else what is imported is not looked at, and neither is the format
		External: []string{"*"}, // and nothing is read from a disk
		Metafile: true,

		MinifyWhitespace:  true,
		MinifyIdentifiers: true, // only the metafile is used, and without it names of nested functions take the square of their number
		Format:            api.FormatESModule,
		Target:            api.ESNext,
		TreeShaking:       api.TreeShakingFalse,
		LogLevel:          api.LogLevelSilent,
		LogOverride:       silentWarnings,
	})
	if len(out.Errors) > 0 {
		return scriptMetadata{}, newParseError(out.Errors[0])
	}
	var meta struct {
		Inputs map[string]scriptMetadata `json:"inputs"`
	}
	if err := json.Unmarshal([]byte(out.Metafile), &meta); err != nil {
		return scriptMetadata{}, err
	}
	return meta.Inputs[name], nil
}

// newParseError returns esbuild's message, cut to 200 bytes, as an error, with line and column if it has them. The message may
// quote a token of megabytes.
func newParseError(m api.Message) error {
	if m.Location == nil {
		return fmt.Errorf("%.200s", m.Text)
	}
	return fmt.Errorf("line %d, column %d: %.200s", m.Location.Line, m.Location.Column+1, m.Text)
}

// Argument is the first argument of a process that is to become a child. The
// program that uses a Pool calls RunChild when it finds it there.
const Argument = "worker-process"

// maxStack bounds a child's stack in bytes: enough for any honest file, and
// reached before the machine's memory is.
const maxStack = 256 << 20

// RunChild is the main function of a child process. It confines this process, but for the limit of memory, which the parent sets,
// greets the parent on standard output, and runs the jobs that it reads from standard input, one after another. It lowers the
// process's priority if the second argument is "nice". It never returns: it ends the process when the input is closed, if it
// cannot confine the process, or if it cannot write to the parent.
func RunChild() { runChild(system) }

// runChild is the main function of a child process, see [RunChild]. k are the protections, tests pass others than those of the
// system; it applies those that the system has, but leaves the limit of memory to the parent. If one of these cannot be applied,
// it reports that to the parent and ends the process. It never returns.
func runChild(k protections) {
	debug.SetMaxStack(maxStack)
	// Ctrl-C and a service manager's stop reach the whole group of processes; the
	// parent decides what they mean, and its end closes the input.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	setPriority := priority.RestoreTimeSlices // the parent may have raised its own
	if len(os.Args) > 2 && os.Args[2] == niceArgument {
		setPriority = priority.LowerForBackground
	}
	_ = setPriority() // if it fails, the work goes on at the parent's priority
	closeInheritedDescriptors()
	out := bufio.NewWriter(os.Stdout)
	send := func(message interface{ write(io.Writer) error }) error {
		return errors.Join(message.write(out), out.Flush())
	}
	first := hello{Mapped: unusedAddressSpace()}
	err := k.confine()
	if err != nil {
		first.Failure = "couldn't confine the process: " + err.Error() // the parent sends no job then
	}
	if err = errors.Join(err, send(first)); err != nil {
		os.Exit(1)
	}
	usual := debug.SetGCPercent(noCollection)
	jobs := make(chan request)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			r, err := readRequest(in)
			if err != nil {
				os.Exit(0) // the parent ended, perhaps in the middle of a job
			}
			jobs <- r
		}
	}()
	for r := range jobs {
		if r.Memory > 0 {
			debug.SetMemoryLimit(r.Memory - r.Memory/8) // so that it collects garbage before it is killed
		}
		switch r.Task {
		case SqueezeBr, SqueezeGzip, BuildModules:
			debug.SetGCPercent(littleGarbage)
		case EncodeDelta:
			debug.SetGCPercent(noCollection)
		default:
			debug.SetGCPercent(usual)
		}
		large := len(r.Data) > keptMemory || r.Task == EncodeDelta // nothing uses r.Data after the job has read it, so its memory can be freed
		if err := send(runRequest(r)); err != nil {
			os.Exit(1)
		}
		if large {
			runtime.GC() // what is pooled survives one
			debug.FreeOSMemory()
		}
	}
}

// littleGarbage is how much garbage an encoder or a build of modules leaves until it is collected, in percent of the memory in
// use. An encoder has few large tables without pointers, so collecting often is cheap. A build would need twice the memory
// otherwise.
const littleGarbage = 25

// noCollection has garbage collected only close to the limit of memory, and after the job. The encoder of deltas fills and copies two tables of 32 MiB,
// however small the content is. To stop a goroutine, the collector sends signals to its thread until the goroutine reaches a safe point, which a copy
// has only at its end; each signal interrupts the copy at the next page that the kernel has to provide. A delta took three times as long.
const noCollection = -1

// keptMemory is the size of a job's data, in bytes, above which the child returns all free memory to the system after the job.
const keptMemory = 32 << 10

// niceArgument is the second argument of a child that is to run at the lowest priority.
const niceArgument = "nice"
