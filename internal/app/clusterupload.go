package app

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/larder-cdn/larder/api/admin"
)

// An import through a node that does not write goes to the one that does: its source is sent there, a folder as an archive.

// uploadDir is where sources wait for their import. It is emptied at each start.
func (c *clustered) uploadDir() string { return filepath.Join(tmpDir(c.settings.Data), "uploads") }

// uploaded returns where an upload is, by what the node was told that sent it. Nothing else of this machine can be named.
func (c *clustered) uploaded(told string) (at string, err error) {
	id, name, _ := strings.Cut(told, "/")
	if len(id) != len(rand.Text()) || strings.ContainsAny(id, `./\`) || name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return "", fmt.Errorf("%q is not an upload", told)
	}
	return filepath.Join(c.uploadDir(), id, name), nil
}

// uploads takes sources, and answers with the name of each.
func (c *clustered) uploads() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Base(r.URL.Query().Get("name"))
		if r.Method != http.MethodPost || name == "." || name == ".." || name == string(filepath.Separator) {
			http.Error(w, "want POST with a name", http.StatusBadRequest)
			return
		}
		at, err := c.take(name, http.MaxBytesReader(w, r.Body, mostUploads))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInsufficientStorage)
			return
		}
		io.WriteString(w, at) //nolint:errcheck // the node has gone
	})
}

func (c *clustered) take(name string, from io.Reader) (told string, err error) {
	id := rand.Text()
	dir := filepath.Join(c.uploadDir(), id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(f, from)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return id + "/" + name, nil
}

// uploading has the node that writes import a source that is here.
func (c *clustered) uploading(ctx context.Context, request json.RawMessage, report func(any)) (any, error) {
	return withSource(request, func(told string) (string, func(), error) {
		at, err := c.upload(ctx, told)
		return at, func() {}, err
	}, func(request json.RawMessage) (any, error) {
		return c.forward(ctx, string(opImportUpload), request, report)
	})
}

// ofUpload has an import be one of a source that another node has sent.
func (c *clustered) ofUpload(imports admin.Operation) admin.Operation {
	return func(ctx context.Context, request json.RawMessage, report func(any)) (any, error) {
		return withSource(request, func(told string) (string, func(), error) {
			at, err := c.uploaded(told)
			return at, func() { os.RemoveAll(filepath.Dir(at)) }, err
		}, func(request json.RawMessage) (any, error) { return imports(ctx, request, report) })
	}
}

// withSource does an import whose source is elsewhere than the request says.
func withSource(request json.RawMessage, find func(told string) (at string, done func(), err error), do func(json.RawMessage) (any, error)) (any, error) {
	var q ImportRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, err
	}
	at, done, err := find(q.Source)
	if err != nil {
		return nil, err
	}
	defer done()
	q.Source = at
	if request, err = json.Marshal(q); err != nil {
		return nil, err
	}
	return do(request)
}

// upload sends the source of an import to the node that writes, and returns what that calls it.
func (c *clustered) upload(ctx context.Context, source string) (told string, err error) {
	to, err := c.findWriter(ctx)
	if err != nil {
		return "", err
	}
	is, err := os.Stat(source)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, uploadTime)
	defer cancel()
	name := filepath.Base(source)
	read, write := io.Pipe()
	go func() {
		if is.IsDir() {
			write.CloseWithError(pack(write, source))
			return
		}
		f, err := os.Open(source)
		if err == nil {
			_, err = io.Copy(write, f)
			err = errors.Join(err, f.Close())
		}
		write.CloseWithError(err)
	}()
	defer read.Close()
	if is.IsDir() {
		name += ".tar"
	}
	said, err := ask(ctx, c.askingClient(false), to+uploadPath+"?name="+url.QueryEscape(name), read, shortAnswer)
	if err != nil {
		return "", unreached(to, fmt.Errorf("couldn't send %s to the node that publishes: %w", source, err))
	}
	return string(said), nil
}

// pack writes the files of a folder as an archive.
func pack(to io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := tar.NewWriter(to)
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: info.Size(), Mode: 0o644, ModTime: info.ModTime()}); err != nil {
			return err
		}
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	return errors.Join(err, w.Close())
}
