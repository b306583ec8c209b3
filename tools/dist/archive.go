package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// A file goes into an archive.
type file struct {
	name string // in the archive, without a slash in front
	from string // "" for a folder
	text []byte // in the place of from
	mode int64
	uid  int
}

// archives makes one for each platform: the program, its manual, completions, and what a user has to read.
func (r *release) archives(context.Context) error {
	for _, p := range platforms {
		base := "larder_" + r.version + "_" + p.os + "_" + p.arch
		files := []file{{name: base + "/larder", from: r.binary(p), mode: 0o755}}
		for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
			files = append(files, file{name: base + "/" + name, from: filepath.Join(r.source, name), mode: 0o644})
		}
		for _, name := range monitoring {
			files = append(files, file{name: path.Join(base, "monitoring", name), from: filepath.Join(r.source, "docs/monitoring", name), mode: 0o644})
		}
		for _, dir := range []string{"man", "completion"} {
			entries, err := os.ReadDir(filepath.Join(r.work, dir))
			if err != nil {
				return err
			}
			for _, e := range entries {
				files = append(files, file{name: path.Join(base, dir, e.Name()), from: filepath.Join(r.work, dir, e.Name()), mode: 0o644})
			}
		}
		if err := r.archive(base+".tar.gz", files); err != nil {
			return err
		}
	}
	return nil
}

// archive makes a .tar.gz of the release.
func (r *release) archive(name string, files []file) (err error) {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, files, r.time); err != nil {
		return err
	}
	r.made = append(r.made, name)
	return z.Close()
}

// writeTar writes files in the order of their names, all as of one moment.
func writeTar(w io.Writer, files []file, at time.Time) error {
	slices.SortFunc(files, func(a, b file) int {
		switch {
		case a.name < b.name:
			return -1
		case a.name > b.name:
			return 1
		}
		return 0
	})
	t := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, ModTime: at, Uid: f.uid, Gid: f.uid, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		data := f.text
		switch {
		case f.from != "":
			var err error
			if data, err = os.ReadFile(f.from); err != nil {
				return err
			}
		case data == nil:
			header.Typeflag, header.Name = tar.TypeDir, f.name+"/"
		}
		header.Size = int64(len(data))
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	return t.Close()
}
