package bot

import (
	"bytes"
	"context"
	"strings"

	"github.com/larder-cdn/larder/bot/worker"
)

// maxModule is the largest script whose format is found out, in bytes. The parser
// takes minifierMemory times that at most, once at a time.
const maxModule = 2 << 20

// isModule reports whether a .js file is an ES module, so that its tag can say so. What
// is too large, or does not parse, is taken for a classic script. An error ends
// the release.
func (a *assembly) isModule(ctx context.Context, source string, data []byte) (bool, error) {
	if !strings.HasSuffix(strings.ToLower(source), ".js") || len(data) > maxModule || !maybeModule(data) {
		return false, nil
	}
	if err := a.parsing.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer a.parsing.Release(1)
	format, err := a.minifiers.Do(ctx, worker.FindFormat, data)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if stops(err) {
		return false, err
	}
	return err == nil && string(format) == "esm", nil
}

// maybeModule reports whether a script has a word that only modules begin a statement
// with. Parsing takes a hundred times as long, and few scripts need it.
func maybeModule(data []byte) bool {
	if bytes.Contains(data, []byte("import.meta")) {
		return true
	}
	for _, word := range []string{"export", "import"} {
		for rest := data; ; {
			i := bytes.Index(rest, []byte(word))
			if i < 0 {
				break
			}
			before := bytes.TrimRight(rest[:i], " \t")
			after := rest[i+len(word):]
			if (len(before) == 0 || strings.IndexByte("\n\r;})/", before[len(before)-1]) >= 0) &&
				len(after) > 0 && strings.IndexByte(" \t\r\n{*\"'/", after[0]) >= 0 {
				return true
			}
			rest = after
		}
	}
	return false
}
