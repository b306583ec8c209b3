package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A Task says what a job does with its bytes.
type Task string

// The tasks.
const (
	MinifyJS    Task = "minify-js"
	MinifyCSS   Task = "minify-css"
	FindFormat  Task = "find-format" // answers "esm", "cjs", or nothing where a script is neither
	SqueezeBr   Task = "squeeze-br"
	SqueezeGzip Task = "squeeze-gzip"
)

// request and response are what goes over a child's standard input and output,
// gob-encoded.
type request struct {
	Task Task
	Data []byte
}

type response struct {
	Data  []byte
	Error string
}

// do runs one job in this process.
func do(r request) response {
	data, err := run(r.Task, r.Data)
	if err != nil {
		return response{Error: err.Error()}
	}
	return response{Data: data}
}

func run(t Task, data []byte) ([]byte, error) {
	switch t {
	case MinifyJS:
		return minify(data, api.LoaderJS)
	case MinifyCSS:
		return minify(data, api.LoaderCSS)
	case FindFormat:
		return findFormat(data)
	case SqueezeBr:
		return coding.Encode(coding.Brotli, coding.Best, data)
	case SqueezeGzip:
		return coding.Encode(coding.Gzip, coding.Best, data)
	}
	return nil, fmt.Errorf("unknown task %q", t)
}

// minify returns a smaller program or style sheet that means the same, with
// legal comments kept. Top-level names stay, because other scripts use them.
func minify(data []byte, loader api.Loader) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8, so minifying would change it")
	}
	out := api.Transform(string(data), api.TransformOptions{
		Loader:            loader,
		Target:            api.ESNext,
		Charset:           api.CharsetUTF8, // as the file was; escapes would double what is not ASCII
		LegalComments:     api.LegalCommentsInline,
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		TreeShaking:       api.TreeShakingFalse,
		LogLevel:          api.LogLevelSilent,
	})
	if len(out.Errors) > 0 {
		return nil, parseError(out.Errors[0])
	}
	again := api.Transform(string(out.Code), api.TransformOptions{Loader: loader, Target: api.ESNext, LogLevel: api.LogLevelSilent})
	if len(again.Errors) > 0 {
		return nil, fmt.Errorf("the minified form does not parse: %w", parseError(again.Errors[0]))
	}
	return out.Code, nil
}

// findFormat returns the module format that a script's syntax tells, as esbuild
// names it.
func findFormat(data []byte) ([]byte, error) {
	const name = "script.js"
	out := api.Build(api.BuildOptions{
		Stdin:       &api.StdinOptions{Contents: string(data), Sourcefile: name, Loader: api.LoaderJS},
		Bundle:      true,          // else what is imported is not looked at, and neither is the format
		External:    []string{"*"}, // and nothing is read from a disk
		Metafile:    true,
		Format:      api.FormatESModule,
		Target:      api.ESNext,
		TreeShaking: api.TreeShakingFalse,
		LogLevel:    api.LogLevelSilent,
	})
	if len(out.Errors) > 0 {
		return nil, parseError(out.Errors[0])
	}
	var meta struct {
		Inputs map[string]struct {
			Format string `json:"format"`
		} `json:"inputs"`
	}
	if err := json.Unmarshal([]byte(out.Metafile), &meta); err != nil {
		return nil, err
	}
	return []byte(meta.Inputs[name].Format), nil
}

// parseError cuts the message, which may hold a token of megabytes.
func parseError(m api.Message) error {
	if m.Location == nil {
		return fmt.Errorf("%.200s", m.Text)
	}
	return fmt.Errorf("line %d, column %d: %.200s", m.Location.Line, m.Location.Column+1, m.Text)
}
