// Package worker works on strangers' bytes in child processes:
// minifying, encoding at the best ratio, and rendering documents for pages.
//
// A parser that a hostile file makes crash takes its process with it
// (a megabyte of "!" overflows the stack of a recursive JavaScript parser, which
// Go cannot recover from). So a job that crashes, stalls or takes more memory than
// [Memory] tells costs that one job an error and never the bot. A child works for one owner, which is a release: what
// a job does to its process reaches no other release. A
// child may also run at the lowest priority, so that squeezing leaves the processor
// to serving and publishing without a scheduler of our own.
//
// Before it reads the first byte, a child gives up for good what it does not need: on Linux
// it cannot open files or sockets, start processes, signal others, raise its limits or map memory
// that these do not count (Landlock, a system-call filter). [Unprotected] tells what of that a system lacks; a
// child that fails to apply what there is does no work. It has
// none of the parent's descriptors besides its pipes, and of the environment only what Go
// itself reads: tokens are no business of what works on strangers' bytes.
//
// The package knows bytes only: no packages, no store.
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

	"github.com/larder-cdn/larder/bot/worker/render"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A Task says what a job does with its bytes.
type Task string

// The tasks.
const (
	MinifyJS    Task = "minify-js"
	MinifyCSS   Task = "minify-css"
	FindFormat  Task = "find-format"  // answers "esm", "cjs", or nothing where a script is neither
	FindImports Task = "find-imports" // answers a JSON array of what a module imports, as it is written there
	Render      Task = "render"       // takes and answers what package render's Run does
	SqueezeBr   Task = "squeeze-br"
	SqueezeGzip Task = "squeeze-gzip"
)

// A mapped is how much address space a process has, in bytes. The limits of the system count it, used or not.
type mapped struct {
	All  int64
	Data int64 // private and writable
}

// hello, request and response are what goes over a child's standard output and input.
type hello struct {
	Mapped  mapped // that it does not use
	Failure string // why it does not work
}

type request struct {
	Task   Task
	Data   []byte
	Memory int64 // of the whole child, in bytes
}

type response struct {
	Data  []byte
	Error string
}

// do runs one job in this process.
func do(r request) response {
	data, err := run(r.Task, r.Data)
	if err != nil {
		return response{Error: text.Cut(err.Error(), headSize)}
	}
	return response{Data: data}
}

// tasks are what children do. Tests add some that are not allowed.
var tasks = map[Task]func(data []byte) ([]byte, error){
	MinifyJS:    func(data []byte) ([]byte, error) { return minify(data, api.LoaderJS) },
	MinifyCSS:   func(data []byte) ([]byte, error) { return minify(data, api.LoaderCSS) },
	FindFormat:  findFormat,
	FindImports: findImports,
	Render:      render.Run,
	SqueezeBr:   func(data []byte) ([]byte, error) { return coding.Encode(coding.Brotli, coding.Best, data) },
	SqueezeGzip: func(data []byte) ([]byte, error) { return coding.Encode(coding.Gzip, coding.Best, data) },
}

func run(t Task, data []byte) ([]byte, error) {
	if task, ok := tasks[t]; ok {
		return task(data)
	}
	return nil, fmt.Errorf("unknown task %q", t)
}

// Small is the memory that every child may have, in bytes: enough for most jobs.
const Small = 32 << 20

// RenderMemory is what a child that renders a document may have, in bytes, and RenderTime its processor time.
const (
	RenderMemory = 128 << 20
	RenderTime   = 2 * time.Second
)

// minifierMemory is how many times its size a file takes in the minifier, measured.
const minifierMemory = 170

// Memory returns how much memory a job's child may have, in bytes, and is killed where it needs more; the program's
// own pages, which all share, are apart.
func Memory(t Task, size int64) int64 {
	switch t {
	case Render:
		return RenderMemory
	case MinifyJS, MinifyCSS, FindFormat, FindImports:
		return max(Small, 16<<20+minifierMemory*size)
	default:
		// What is reckoned with is resident. More is mapped, because blocks of the heap are left over.
		resident := coding.Memory(coding.Brotli, coding.Best, size)
		return max(Small, resident+min(resident/2, 40<<20))
	}
}

// minifier has the options with which files are minified, as of esbuild's command line, so that anyone can make them
// again. Top-level names stay, because other scripts use them; characters stay, because escapes would double what is
// not ASCII.
const minifier = "--minify --target=esnext --charset=utf8 --legal-comments=inline --tree-shaking=false"

// minifierVersion is that of the module in go.mod, as a test sees to; esbuild itself does not tell.
const minifierVersion = "0.28.2"

// Minifier says which program minifies files here, in which version and with which options of its command line, so that
// a verifier that runs the same program makes the same bytes.
func Minifier() (program, version, options string) {
	return "esbuild", minifierVersion, minifier
}

// minifying are those options.
var minifying = sync.OnceValues(func() (api.TransformOptions, error) {
	return cli.ParseTransformOptions(strings.Fields(minifier))
})

// silent are the warnings about style sheets. Larder does not use them, and esbuild takes the square of their number to make them.
var silent = map[string]api.LogLevel{
	"css-syntax-error": api.LogLevelSilent, "invalid-calc": api.LogLevelSilent, "js-comment-in-css": api.LogLevelSilent,
	"unsupported-css-property": api.LogLevelSilent, "unsupported-css-nesting": api.LogLevelSilent, "invalid-@import": api.LogLevelSilent,
	"invalid-@layer": api.LogLevelSilent, "invalid-@charset": api.LogLevelSilent, "unsupported-@namespace": api.LogLevelSilent, "unsupported-@charset": api.LogLevelSilent,
}

// minify returns a smaller program or style sheet that means the same, with
// legal comments kept.
func minify(data []byte, loader api.Loader) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8, so minifying would change it")
	}
	check := checkScript
	if loader == api.LoaderCSS {
		check = checkStyles
	}
	if err := check(data); err != nil {
		return nil, err
	}
	options, err := minifying()
	if err != nil {
		return nil, err
	}
	options.Loader, options.LogLevel, options.LogOverride = loader, api.LogLevelSilent, silent
	out := api.Transform(string(data), options)
	if len(out.Errors) > 0 {
		return nil, parseError(out.Errors[0])
	}
	// Without white space and names, as in metadata, because they take the square of the depth of blocks and functions.
	again := api.Transform(string(out.Code), api.TransformOptions{Loader: loader, Target: api.ESNext, MinifyWhitespace: true, MinifyIdentifiers: true, LogLevel: api.LogLevelSilent, LogOverride: silent})
	if len(again.Errors) > 0 {
		return nil, fmt.Errorf("the minified form does not parse: %w", parseError(again.Errors[0]))
	}
	return out.Code, nil
}

// findFormat returns the module format that a script's syntax tells, as esbuild
// names it.
func findFormat(data []byte) ([]byte, error) {
	in, err := metadata(data)
	return []byte(in.Format), err
}

// findImports returns what a module imports when it is loaded, and what it may import later.
func findImports(data []byte) ([]byte, error) {
	in, err := metadata(data)
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

// input is what esbuild finds out about a script.
type input struct {
	Format  string `json:"format"`
	Imports []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"imports"`
}

func metadata(data []byte) (input, error) {
	const name = "script.js"
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
	})
	if len(out.Errors) > 0 {
		return input{}, parseError(out.Errors[0])
	}
	var meta struct {
		Inputs map[string]input `json:"inputs"`
	}
	if err := json.Unmarshal([]byte(out.Metafile), &meta); err != nil {
		return input{}, err
	}
	return meta.Inputs[name], nil
}

// parseError cuts the message, which may hold a token of megabytes.
func parseError(m api.Message) error {
	if m.Location == nil {
		return fmt.Errorf("%.200s", m.Text)
	}
	return fmt.Errorf("line %d, column %d: %.200s", m.Location.Line, m.Location.Column+1, m.Text)
}

// Argument is the first argument of a process that is to become a child. The
// program that uses a Pool calls Main when it finds it there.
const Argument = "worker-process"

// maxStack bounds a child's stack in bytes: enough for any honest file, and
// reached before the machine's memory is.
const maxStack = 256 << 20

// Main does jobs from standard input until that is closed, then ends the
// process.
func Main() { serve(system) }

func serve(k kernel) {
	debug.SetMaxStack(maxStack)
	// Ctrl-C and a service manager's stop reach the whole group of processes; the
	// parent decides what they mean, and its end closes the input.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 2 && os.Args[2] == niceArgument {
		_ = lowerPriority() // if it fails, the work goes on at the usual priority
	}
	closeInherited()
	out := bufio.NewWriter(os.Stdout)
	send := func(message interface{ write(io.Writer) error }) error {
		return errors.Join(message.write(out), out.Flush())
	}
	first := hello{Mapped: addressSpace()}
	err := k.confine()
	if err != nil {
		first.Failure = "it couldn't confine itself: " + err.Error() // and does not begin to read
	}
	if err = errors.Join(err, send(first)); err != nil {
		os.Exit(1)
	}
	jobs := make(chan request)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			r, err := readRequest(in)
			if err != nil {
				os.Exit(0) // the parent is gone, perhaps in the middle of a job
			}
			jobs <- r
		}
	}()
	for r := range jobs {
		if r.Memory > 0 {
			debug.SetMemoryLimit(r.Memory - r.Memory/8) // so that it collects garbage before it is killed
		}
		if r.Task == SqueezeBr || r.Task == SqueezeGzip {
			debug.SetGCPercent(encoderGarbage)
		}
		if err := send(do(r)); err != nil {
			os.Exit(1)
		}
		if large := len(r.Data) > keptMemory; large {
			r = request{}
			runtime.GC() // what is pooled survives one
			debug.FreeOSMemory()
		}
	}
}

// encoderGarbage is how much garbage an encoder leaves until it is collected, in percent of
// what it has in use. Its memory is few large tables without pointers, so looking often is cheap.
const encoderGarbage = 25

// keptMemory is the size in bytes of a job's data above which the child gives all memory back
// after it: others count on that.
const keptMemory = 32 << 10

// niceArgument is the second argument of a child that is to run at the lowest priority.
const niceArgument = "nice"
