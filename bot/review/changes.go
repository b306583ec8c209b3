package review

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	gogithub "github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/packages"
)

// What is read of a pull request. Beyond that it is not looked at, and does not pass.
const (
	mostChanged = 3000     // files; GitHub tells of no more
	mostFiles   = 200      // package JSON files
	mostBytes   = 16 << 20 // of all of them
)

// changes are what a pull request changes.
type changes struct {
	files   []*file  // package JSON files that it adds or changes
	removed []string // package JSON files that it removes
	other   []string // files that nobody looks at here
	left    int      // package JSON files over the limits
	cut     bool     // there may be more than GitHub tells
}

// A file is a package JSON file of a pull request.
type file struct {
	path  string
	blob  string // its hash in git
	isNew bool   // the catalogue does not have it yet
	data  []byte
	// unreadable says why data is not there, "" where it is.
	unreadable string
}

// isPackageFile tells whether a catalogue takes a file for a package JSON.
func isPackageFile(name string) bool {
	return strings.HasPrefix(name, "packages/") && path.Ext(name) == ".json" && !strings.Contains(name, "/.")
}

// changes asks what a pull request changes, without reading any of it.
func (r *Reviewer) changes(ctx context.Context, number int) (*changes, error) {
	c := &changes{}
	total := 0
	o := &gogithub.ListOptions{PerPage: 100}
	for o.Page = 1; total < mostChanged; o.Page++ {
		files, _, err := r.o.Client.PullRequests.ListFiles(ctx, r.owner, r.name, number, o)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			c.add(f)
		}
		total += len(files)
		if len(files) < o.PerPage {
			return c, nil
		}
	}
	c.cut = true
	return c, nil
}

func (c *changes) add(f *gogithub.CommitFile) {
	name := f.GetFilename()
	// What GitHub calls renamed is one file that goes and one that comes, which may have changed, too.
	if before := f.GetPreviousFilename(); f.GetStatus() == "renamed" && isPackageFile(before) {
		c.removed = append(c.removed, before)
	}
	switch {
	case !isPackageFile(name):
		c.other = append(c.other, name)
	case f.GetStatus() == "removed":
		c.removed = append(c.removed, name)
	case len(c.files) == mostFiles:
		c.left++
	default:
		isNew := f.GetStatus() == "added" || f.GetStatus() == "renamed" || f.GetStatus() == "copied"
		c.files = append(c.files, &file{path: name, blob: f.GetSHA(), isNew: isNew})
	}
}

// read reads the files as they are at a commit.
func (r *Reviewer) read(ctx context.Context, c *changes, commit string) error {
	total := 0
	for i, f := range c.files {
		if total > mostBytes {
			c.left += len(c.files) - i
			c.files = c.files[:i]
			return nil
		}
		if err := r.readFile(ctx, f, commit); err != nil {
			return fmt.Errorf("couldn't read a file of the submission: %w", err)
		}
		total += len(f.data)
	}
	return nil
}

// readFile asks for one file. GitHub's answer has no content of more than 1 MiB, which is what a package
// JSON may have; and about a link it tells what the link leads to, which shows in the hash.
func (r *Reviewer) readFile(ctx context.Context, f *file, commit string) error {
	segments := strings.Split(f.path, "/")
	for i, s := range segments {
		if s == "" || s == "." || s == ".." {
			f.unreadable = "its path cannot be asked for"
			return nil
		}
		segments[i] = url.PathEscape(s)
	}
	request, err := r.o.Client.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/contents/%s?ref=%s", r.owner, r.name, strings.Join(segments, "/"), commit), nil)
	if err != nil {
		return err
	}
	var answer struct {
		Type, SHA, Encoding, Content string
		Size                         int64
	}
	_, err = r.o.Client.Do(ctx, request, &answer)
	switch {
	case github.Status(err) == http.StatusNotFound:
		f.unreadable = "GitHub does not have it at this commit"
	case err != nil:
		return err
	case answer.Type != "file" || answer.SHA != f.blob:
		f.unreadable = "it is a link or something else that is no regular file; only regular files are read"
	case answer.Encoding != "base64" || answer.Size > packages.MaxFileSize:
		f.unreadable = fmt.Sprintf("it has %d bytes; a package JSON has %d at most", answer.Size, packages.MaxFileSize)
	default:
		if f.data, err = base64.StdEncoding.DecodeString(answer.Content); err != nil { // line breaks in it do not matter
			return errors.New("GitHub's answer has broken base64 in it")
		}
	}
	return nil
}
