package text

import (
	"regexp"
	"sync"
)

// A Regexp is a regular expression that is compiled on first use, like those of package lazyregexp inside the go command. It is safe for
// concurrent use. Larder starts itself as a child process for each worker, and a package-level regexp.MustCompile would run in each of them.
// After the first use a call costs one atomic load more than a call to package regexp.
type Regexp struct {
	pattern  string
	once     sync.Once
	compiled *regexp.Regexp
}

// NewRegexp returns the regular expression of pattern, which must be a literal: the test of this package finds literals only.
func NewRegexp(pattern string) *Regexp { return &Regexp{pattern: pattern} }

// Get returns the compiled expression, for functions that take a *regexp.Regexp.
func (r *Regexp) Get() *regexp.Regexp {
	r.once.Do(r.compile)
	return r.compiled
}

// compile sets compiled. It panics if the pattern is malformed.
func (r *Regexp) compile() { r.compiled = regexp.MustCompile(r.pattern) }

// MatchString is regexp.Regexp.MatchString.
func (r *Regexp) MatchString(s string) bool { return r.Get().MatchString(s) }

// FindString is regexp.Regexp.FindString.
func (r *Regexp) FindString(s string) string { return r.Get().FindString(s) }

// FindStringSubmatch is regexp.Regexp.FindStringSubmatch.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.Get().FindStringSubmatch(s) }

// ReplaceAllString is regexp.Regexp.ReplaceAllString.
func (r *Regexp) ReplaceAllString(src, repl string) string {
	return r.Get().ReplaceAllString(src, repl)
}

// ReplaceAllStringFunc is regexp.Regexp.ReplaceAllStringFunc.
func (r *Regexp) ReplaceAllStringFunc(src string, repl func(string) string) string {
	return r.Get().ReplaceAllStringFunc(src, repl)
}
