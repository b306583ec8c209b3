package gitlog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Branch is the branch that the commits are on, if no other is named.
const Branch = "main"

// AuthorName and AuthorEmail are author and committer of every commit.
const (
	AuthorName  = "Larder"
	AuthorEmail = "larder@localhost"
)

// A Change is one commit: a text that is added to the end of a file.
type Change struct {
	Index   int64     `json:"index"` // of the entry in the log
	Hash    string    `json:"hash"`  // of the entry in the log's tree, without spaces
	Time    time.Time `json:"time"`
	Path    string    `json:"path"`
	Subject string    `json:"subject"` // a line
	Text    string    `json:"text"`
}

// A Position is how far a repository has come.
type Position struct {
	Index int64  `json:"index"` // of the last entry, or -1
	Hash  string `json:"hash"`
}

// String says which entries a repository has: "none", or "all up to 12", the index of the last one.
func (p Position) String() string {
	if p.Index < 0 {
		return "none"
	}
	return fmt.Sprintf("all up to %d", p.Index)
}

// The trailers of each commit's message.
const (
	indexTrailer = "Log-Entry: "
	hashTrailer  = "Log-Hash: "
)

// Position returns the position of a repository whose last commit is this change.
func (c Change) Position() Position { return Position{c.Index, c.Hash} }

// Message returns the message of the change's commit, which [ParseMessage] parses.
func (c Change) Message() string {
	return fmt.Sprintf("%s\n\n%s%d\n%s%s\n", c.Subject, indexTrailer, c.Index, hashTrailer, c.Hash)
}

// Check returns an error if the change cannot be the next one of a repository at a position, because the repository has it
// or the path is invalid. It does not notice that entries between are missing.
func (c Change) Check(p Position) error {
	if c.Index <= p.Index {
		return fmt.Errorf("gitlog: entry %d comes after entry %d", c.Index, p.Index)
	}
	return checkPath(c.Path)
}

// Append returns the new content of the change's file: the text after before and an empty line, or the text alone if before is
// nil, which means that there is no such file. It may write to the capacity of before.
func (c Change) Append(before []byte) []byte {
	if before != nil {
		before = append(before, '\n')
	}
	return append(before, c.Text...)
}

// checkPath returns an error unless each part of a path is a valid file name on every system.
func checkPath(path string) error {
	for p := range strings.SplitSeq(path, "/") {
		if p == "" || p[0] == '.' || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(`\:*?"<>|~`, r) }) {
			return fmt.Errorf("gitlog: %q is no path on every system", path)
		}
	}
	return nil
}

// ParseMessage parses the position of a repository from the message of its last commit. It returns an error for the message
// of another program; the position is not valid then.
func ParseMessage(message string) (p Position, err error) {
	p.Index = -1
	for line := range strings.Lines(message) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, indexTrailer); ok {
			if p.Index, err = strconv.ParseInt(text, 10, 64); err != nil {
				return p, err
			}
		}
		if text, ok := strings.CutPrefix(line, hashTrailer); ok {
			p.Hash = text
		}
	}
	if p.Index < 0 || p.Hash == "" {
		return p, errors.New("it does not say which entry of the log it has")
	}
	return p, nil
}
