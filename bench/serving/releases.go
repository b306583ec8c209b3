package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// realReleases are what the corpus is made of: releases of the registry that npm
// is configured with, as their names there and versions. Libraries that many sites
// load, and icon sets for the great number of small files.
var realReleases = strings.Fields(`
	jquery@3.7.1 jquery@3.6.0 jquery@2.2.4 jquery@1.12.4 bootstrap@5.3.3 bootstrap@4.6.2 bootstrap@3.4.1
	plotly.js-dist-min@2.35.2
	@tabler/icons@3.31.0 @mdi/svg@7.4.47 bootstrap-icons@1.11.3 simple-icons@13.21.0
	@fortawesome/fontawesome-free@6.7.2 @fortawesome/fontawesome-free@5.15.4 font-awesome@4.7.0
	date-fns@2.30.0 date-fns@3.6.0 date-fns@4.1.0 lodash@4.17.21 lodash-es@4.17.21
	three@0.170.0 three@0.160.0 three@0.147.0 monaco-editor@0.52.2 monaco-editor@0.45.0
	mathjax@3.2.2 mathjax@2.7.9 tinymce@7.6.0 tinymce@6.8.5 tinymce@5.10.9 ace-builds@1.36.5 ace-builds@1.32.0
	highlight.js@11.10.0 @highlightjs/cdn-assets@11.10.0 prismjs@1.29.0 prismjs@1.28.0
	core-js@3.39.0 core-js-bundle@3.39.0 plotly.js-dist@2.35.2 typescript@5.4.5
	flag-icons@7.2.3 flag-icon-css@3.5.0 @material-design-icons/svg@0.14.13 remixicon@4.5.0 ionicons@7.4.0
	echarts@5.5.1 echarts@4.9.0 rxjs@7.8.1 rxjs@6.6.7 codemirror@5.65.18 jquery-ui-dist@1.13.3
	@mui/material@5.16.7 @coreui/icons@3.0.1 swagger-ui-dist@5.18.2 moment@2.30.1 moment@2.29.4
	pdfjs-dist@4.8.69 pdfjs-dist@3.11.174 katex@0.16.11 video.js@8.19.1 video.js@7.21.6
	antd@5.21.6 antd@4.24.16 element-plus@2.8.8 element-ui@2.15.14 ant-design-vue@4.2.6
	@ckeditor/ckeditor5-build-classic@43.3.1 quill@2.0.2 dayjs@1.11.13 leaflet@1.9.4 chart.js@4.4.6 d3@7.9.0
	vue@3.5.12 vue@2.7.16 react@18.3.1 react-dom@18.3.1 gsap@3.12.5 swiper@11.1.14 mermaid@10.9.1`)

// quickReleases is how many of them -quick takes.
const quickReleases = 8

// served selects the kinds of files that sites load.
const served = "**/*.@(js|mjs|cjs|css|map|svg|png|jpg|gif|webp|woff|woff2|ttf|json|html|txt|md|ts|wasm|less|scss)"

// A corpus is a filled data folder, kept between runs.
type corpus struct {
	folder string // of everything about it
	larder string
}

func (c *corpus) data() string  { return filepath.Join(c.folder, "data") }
func (c *corpus) peers() string { return filepath.Join(c.folder, "peers") }
func (c *corpus) index() string { return filepath.Join(c.folder, "files.json") }

// fillCorpus fills a data folder with real releases, or finds the one that an
// earlier run filled.
func fillCorpus(ctx context.Context, o options) (*corpus, error) {
	releases := realReleases
	switch {
	case o.corpus != "":
		folder, err := filepath.Abs(o.corpus)
		if err != nil {
			return nil, err
		}
		releases = []string{folder}
	case o.quick:
		releases = realReleases[:quickReleases]
	}
	sum := fnv.New64a()
	fmt.Fprint(sum, served, releases)
	c := &corpus{folder: filepath.Join(o.cache, fmt.Sprintf("corpus-%x", sum.Sum64())), larder: o.larder}
	filled := filepath.Join(c.folder, "filled")
	if _, err := os.Stat(filled); err == nil {
		return c, nil
	}
	// What an interrupted run left is not worth finding out about.
	if err := os.RemoveAll(c.folder); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.folder, 0o777); err != nil {
		return nil, err
	}
	if err := c.fill(ctx, o, releases); err != nil {
		return nil, err
	}
	return c, os.WriteFile(filled, nil, 0o666)
}

func (c *corpus) fill(ctx context.Context, o options, releases []string) error {
	catalogue := filepath.Join(c.folder, "catalogue")
	common := []string{"--data", c.data(), "--catalogue", catalogue, "--log-level", "error"}
	if o.corpus != "" {
		if err := writePackage(catalogue, "corpus", "corpus"); err != nil {
			return err
		}
		progress("filling Larder with %s", o.corpus)
		_, _, err := output(ctx, anyCore, nil, o.larder, append([]string{"import", "corpus", "1.0.0", releases[0]}, common...)...)
		return err
	}
	progress("filling Larder with %d releases from npm's registry, into %s", len(releases), c.folder)
	for i, release := range releases {
		at := strings.LastIndexByte(release, '@')
		// A package's name has no slash here; what it is called does not matter.
		name := strings.NewReplacer("@", "", "/", "-").Replace(release[:at])
		if err := writePackage(catalogue, name, release[:at]); err != nil {
			return err
		}
		if _, _, err := output(ctx, anyCore, nil, o.larder, append([]string{"add", name + release[at:]}, common...)...); err != nil {
			return err
		}
		progress("%d of %d: %s", i+1, len(releases), release)
	}
	return nil
}

// writePackage adds a package to the catalogue that takes all files as they are.
func writePackage(catalogue, name, target string) error {
	data, err := json.Marshal(map[string]any{
		"name": name, "filename": "index.js", "description": "Files of real releases, to serve.", "keywords": []string{"benchmark"},
		"license": "MIT", "repository": map[string]string{"type": "git", "url": "https://example.com/benchmark.git"},
		"autoupdate": map[string]any{"source": "npm", "target": target,
			"fileMap": []any{map[string]any{"basePath": "", "files": []string{served}}}},
		"optimization": map[string]bool{"js": false, "css": false},
	})
	if err != nil {
		return err
	}
	folder := filepath.Join(catalogue, "packages", strings.ToLower(name[:1]))
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".json"), data, 0o666)
}

// clone copies a data folder for another process. Tables and blob files are
// linked, as the store never changes one.
func clone(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case !d.Type().IsRegular() || d.Name() == "LOCK":
			return nil
		case strings.HasSuffix(d.Name(), ".sst") || strings.HasSuffix(d.Name(), ".blob"):
			if err := os.Link(path, target); err == nil || errors.Is(err, fs.ErrExist) {
				return nil
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}
