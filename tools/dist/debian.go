package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format
	"github.com/goreleaser/nfpm/v2/files"
)

// packages makes a Debian package for each architecture.
func (r *release) packages(context.Context) error {
	contents, err := r.contents()
	if err != nil {
		return err
	}
	for _, p := range platforms {
		if p.os != "linux" {
			continue
		}
		if err := r.debianPackage(p, append(files.Contents{r.content("/usr/bin/larder", r.binary(p), 0o755)}, contents...)); err != nil {
			return err
		}
	}
	return nil
}

// contents are the files that the package has on every architecture.
func (r *release) contents() (all files.Contents, err error) {
	units := filepath.Join(r.source, "tools/dist/debian")
	for _, name := range []string{"larder.service", "larder.socket", "larder-private.socket"} {
		all = append(all, r.content("/lib/systemd/system/"+name, filepath.Join(units, name), 0o644))
	}
	all = append(all,
		r.content("/usr/lib/sysusers.d/larder.conf", filepath.Join(units, "sysusers.conf"), 0o644),
		r.content("/usr/share/doc/larder/copyright", filepath.Join(r.source, "LICENSE"), 0o644))
	for _, name := range monitoring {
		all = append(all, r.content("/usr/share/larder/monitoring/"+name, filepath.Join(r.source, "docs/monitoring", name), 0o644))
	}
	settings := r.content("/etc/larder/larder.yaml", filepath.Join(units, "larder.yaml"), 0o644)
	settings.Type = files.TypeConfigNoReplace
	all = append(all, settings)
	for shell, to := range shells {
		all = append(all, r.content("/"+to, filepath.Join(r.work, "completion", "larder."+shell), 0o644))
	}
	compressed := map[string]string{"/usr/share/doc/larder/NEWS.gz": filepath.Join(r.source, "CHANGELOG.md")}
	pages, err := filepath.Glob(filepath.Join(r.work, "man", "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		compressed["/usr/share/man/man1/"+filepath.Base(page)+".gz"] = page
	}
	for to, from := range compressed {
		packed := filepath.Join(r.work, filepath.Base(to))
		if err := compress(packed, from); err != nil {
			return nil, err
		}
		all = append(all, r.content(to, packed, 0o644))
	}
	return all, nil
}

func (r *release) content(to, from string, mode os.FileMode) *files.Content {
	return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.time, Owner: "root", Group: "root"}}
}

// compress writes a file as gzip, without its name and time.
func compress(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, packed.Bytes(), 0o644)
}

func (r *release) debianPackage(p platform, contents files.Contents) (err error) {
	scripts := filepath.Join(r.source, "tools/dist/debian")
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "larder", Arch: p.arch, Platform: p.os, Version: r.debianVersion(), VersionSchema: "none", Section: "web", Priority: "optional",
		Maintainer: "The Larder authors <larder@larder-cdn.invalid>", Homepage: "https://github.com/larder-cdn/larder", License: "MIT", MTime: r.time,
		Description: "CDN origin for web libraries\nFetches releases of web libraries from npm or git, compresses every file ahead of time,\nand serves them under the URLs that cdnjs made known.",
		Overridables: nfpm.Overridables{
			Depends: []string{"systemd"}, Recommends: []string{"ca-certificates"}, Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(scripts, "postinst"), PreRemove: filepath.Join(scripts, "prerm"), PostRemove: filepath.Join(scripts, "postrm"),
			},
			Deb: nfpm.Deb{Compression: "gzip"},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("larder_%s_%s.deb", r.debianVersion(), p.arch)
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r.made = append(r.made, name)
	return packager.Package(info, f)
}

// debianVersion has what Debian sorts as semantic versions are sorted: a prerelease is before its release.
func (r *release) debianVersion() string {
	base, pre, ok := strings.Cut(r.version, "-")
	if !ok {
		return base
	}
	return base + "~" + strings.ReplaceAll(pre, "-", ".")
}
