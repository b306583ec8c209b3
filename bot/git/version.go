package git

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// commitHash is a SHA-1, or a SHA-256 where the repository uses that.
var commitHash = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

const (
	maxTags    = 10_000
	maxTagName = 1024 // bytes
)

// versions makes releases of tags: name to commit. Of "v1.0" and "1.0" the second counts, because that is
// how the version is written; the first is told of. What has no place in a version stays, for whoever
// decides on versions to refuse.
func versions(commits map[string]string) ([]Tag, error) {
	if len(commits) > maxTags {
		return nil, refuse("the repository has %d tags, over the limit of %d", len(commits), maxTags)
	}
	tags := make([]Tag, 0, len(commits))
	for name, commit := range commits {
		version, short := shortened(name)
		if _, exact := commits[version]; short && exact {
			continue
		}
		tag := Tag{Version: version, Name: name, Commit: commit}
		if _, both := commits["v"+name]; both && !short && startsWithDigit(name) {
			tag.Note = fmt.Sprintf("the repository has the tags %.100q and %.100q; this is the second", "v"+name, name)
		}
		tags = append(tags, tag)
	}
	slices.SortFunc(tags, func(a, b Tag) int { return strings.Compare(a.Version, b.Version) })
	return tags, nil
}

// shortened drops the "v" of "v1.0"; "vanilla-1.0" begins with a word and stays.
func shortened(name string) (version string, short bool) {
	if rest, ok := strings.CutPrefix(name, "v"); ok && startsWithDigit(rest) {
		return rest, true
	}
	return name, false
}

func startsWithDigit(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }
