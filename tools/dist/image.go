package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is that of the image: nobody in particular, and not root.
const user = 65532

// image makes an OCI image for both architectures, as a .tar of an OCI layout, which podman, skopeo and docker load.
func (r *release) image(context.Context) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		if p.os != "linux" {
			continue
		}
		image, err := r.imageOf(p)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	dir := filepath.Join(r.work, "image")
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	var files []file
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		f := file{name: filepath.ToSlash(relative), from: name, mode: 0o644}
		if d.IsDir() {
			f.from, f.mode = "", 0o755
		}
		files = append(files, f)
		return err
	})
	if err != nil {
		return err
	}
	name := "larder_" + r.version + "_oci.tar"
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := writeTar(out, files, r.time); err != nil {
		return err
	}
	r.made = append(r.made, name)
	return out.Close()
}

// imageOf has the program, the certificates of public authorities, and folders to write to; nothing else.
func (r *release) imageOf(p platform) (v1.Image, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file cannot tell that some of its certificates are not to be trusted
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	err = writeTar(z, []file{
		{name: "LICENSE", text: license, mode: 0o644},
		{name: "etc", mode: 0o755}, {name: "etc/ssl", mode: 0o755}, {name: "etc/ssl/certs", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", text: roots.Bytes(), mode: 0o644},
		{name: "larder", from: r.binary(p), mode: 0o755},
		{name: "tmp", mode: 0o1777},
		{name: "var", mode: 0o755}, {name: "var/lib", mode: 0o755}, {name: "var/lib/larder", mode: 0o750, uid: user},
	}, r.time)
	if err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: "65532:65532", WorkingDir: "/var/lib/larder", Entrypoint: []string{"/larder"}, Cmd: []string{"up"},
		Env:          []string{"LARDER_DATA=/var/lib/larder/data", "LARDER_LISTEN=:8080", "LARDER_LOG_FORMAT=json"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Volumes: map[string]struct{}{"/var/lib/larder": {}},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title": "larder", "org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.source": "https://github.com/larder-cdn/larder", "org.opencontainers.image.licenses": "MIT",
		},
	}
	return mutate.ConfigFile(image, config)
}
