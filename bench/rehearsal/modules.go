package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file has a package of which Larder builds ES modules, and clients that load them. What the modules' bytes must be only
// Larder knows: they must stay the same, be the same at each entrance, and have the integrity that the API names.

const (
	modulesPackage = "rehearsed-modules"
	// modulesEvery is how many releases of other packages come between two of that package.
	modulesEvery = 8
	// modulesPause is the time between two requests of a client for modules.
	modulesPause = 200 * time.Millisecond
)

// moduleFiles are the files of a release in CommonJS, with two subpaths that share code.
func moduleFiles(version string) map[string]string {
	return map[string]string{
		"package.json": `{"name":"` + modulesPackage + `","version":"` + version + `","license":"MIT","exports":{".":"./index.js","./more":"./more.js"}}`,
		"index.js":     "'use strict';\nconst shared = require('./shared');\nexports.version = '" + version + "';\nexports.count = () => shared.next();\nif (process.env.NODE_ENV !== 'production') { exports.debug = require('./shared'); }\n",
		"more.js":      "'use strict';\nconst shared = require('./shared');\nexports.more = '" + version + "';\nexports.count = () => shared.next();\n",
		"shared.js":    "'use strict';\nlet n = 0;\nexports.next = () => ++n;\nexports.table = [" + strings.Repeat("'"+version+"', ", 400) + "];\n",
	}
}

// publishModules releases the next version of modulesPackage.
func (r *registry) publishModules() {
	r.modulesMu.Lock()
	defer r.modulesMu.Unlock()
	version := fmt.Sprintf("1.%d.0", len(r.modules))
	r.Add(modulesPackage, version, time.Now(), moduleFiles(version))
	r.modules = append(r.modules, version)
}

// moduleVersions returns the released versions of modulesPackage, the oldest first.
func (r *registry) moduleVersions() []string {
	r.modulesMu.Lock()
	defer r.modulesMu.Unlock()
	return slices.Clone(r.modules)
}

// A moduleRegistry is the part of the registry with modulesPackage.
type moduleRegistry struct {
	modulesMu sync.Mutex
	modules   []string
}

// moduleNotes are the modules that all clients got.
type moduleNotes struct {
	mu   sync.Mutex
	sums map[string][32]byte // by path
	got  int
}

// add returns an error unless the file at a path has the integrity that the API names, and the bytes that it had before.
func (n *moduleNotes) add(path, integrity string, body []byte) error {
	strong := sha512.Sum512(body)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(strong[:]); got != integrity {
		return errClaim{wrongBytes, fmt.Sprintf("%s has the integrity %s, and the API says %s", path, got, integrity)}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := sha256.Sum256(body)
	if before, ok := n.sums[path]; ok && before != sum {
		return errClaim{wrongBytes, path + " has other bytes than before"}
	}
	if n.sums == nil {
		n.sums = map[string][32]byte{}
	}
	n.sums[path] = sum
	n.got++
	return nil
}

// fetchModules fetches a release's integrities from the API and those of its built files that choose selects, and compares
// them. It returns the integrities of the built files.
func (p *play) fetchModules(ctx context.Context, t http.RoundTripper, e *entrance, version string, choose func(files []string) []string) (map[string]string, error) {
	text, err := fetch(ctx, t, e.url+"/libraries/"+modulesPackage+"/"+version+"?fields=sri")
	if err != nil {
		return nil, err
	}
	var said struct {
		SRI map[string]string `json:"sri"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, errClaim{otherwise, fmt.Sprintf("the API's response about %s %s: %v", modulesPackage, version, err)}
	}
	maps.DeleteFunc(said.SRI, func(file, _ string) bool { return !strings.HasPrefix(file, "esm/") })
	if said.SRI["esm/index.mjs"] == "" || said.SRI["esm/more.mjs"] == "" {
		return nil, errClaim{otherwise, fmt.Sprintf("%s %s has no modules, but %v", modulesPackage, version, slices.Sorted(maps.Keys(said.SRI)))}
	}
	for _, file := range choose(slices.Sorted(maps.Keys(said.SRI))) {
		path := "/ajax/libs/" + modulesPackage + "/" + version + "/" + file
		body, err := fetch(ctx, t, e.url+path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if file == "esm/index.mjs" && (!bytes.Contains(body, []byte(version)) || !bytes.Contains(body, []byte("export"))) {
			return nil, errClaim{wrongBytes, path + " is not a module of that version"}
		}
		if err := p.modules.add(path, said.SRI[file], body); err != nil {
			return nil, err
		}
	}
	return said.SRI, nil
}

// moduleClients runs a client that loads modules at each entrance until ctx ends.
func (p *play) moduleClients(ctx context.Context) {
	p.runClients(ctx, 4000, modulesPause, func(t *http.Transport, e *entrance, random *rand.Rand) func() {
		seen := map[string]bool{}
		return func() { p.loadModule(ctx, t, e, random, seen) }
	})
}

// loadModule fetches a random module of a random release. A release may be missing until seen has it: the entrance has served it.
func (p *play) loadModule(ctx context.Context, t http.RoundTripper, e *entrance, random *rand.Rand, seen map[string]bool) {
	versions := p.registry.moduleVersions()
	version := versions[random.IntN(len(versions))]
	begun := time.Now()
	_, err := p.fetchModules(ctx, t, e, version, func(files []string) []string {
		i := random.IntN(len(files))
		return files[i : i+1]
	})
	if ctx.Err() != nil || err != nil && causeOf(err) == notFound && !seen[version] {
		return
	}
	// Behind the proxy another node may not have it yet.
	seen[version] = seen[version] || err == nil && e.name != proxyName
	p.notes.request(e.name, begun, err)
}

// judgeModules waits until each entrance has the modules of all releases, and compares them.
func (p *play) judgeModules(ctx context.Context) check {
	const name = "modules that Larder built have the same bytes at each entrance, and the integrity that the API names"
	var wrong []string
	files := 0
	versions := p.registry.moduleVersions()
	for _, version := range versions {
		var first map[string]string
		for _, e := range p.entrances {
			if e.h2 {
				continue
			}
			got, err := p.awaitModules(ctx, e, version)
			switch {
			case err != nil:
				wrong = append(wrong, fmt.Sprintf("%s: %s %s: %v", e.name, modulesPackage, version, err))
			case first == nil:
				first = got
				files += len(got)
			case !maps.Equal(first, got):
				wrong = append(wrong, fmt.Sprintf("%s: %s %s has %v, and the first entrance %v", e.name, modulesPackage, version, got, first))
			}
		}
		if len(wrong) > 0 {
			break
		}
	}
	if files == 0 {
		wrong = append(wrong, "no module was built")
	}
	return verdict(name, fmt.Sprintf("%d files of %d releases, loaded %d times", files, len(versions), p.modules.got), wrong)
}

// awaitModules waits until an entrance has all modules of a release, and returns their integrities.
func (p *play) awaitModules(ctx context.Context, e *entrance, version string) (got map[string]string, err error) {
	t := p.transport(e)
	defer t.CloseIdleConnections()
	waitErr := eventually(ctx, e.name+" has the modules of "+version, func() bool {
		if e.fallback { // it fetches a release when one of its files is requested
			_, _ = fetch(ctx, t, e.url+"/ajax/libs/"+modulesPackage+"/"+version+"/esm/index.mjs")
		}
		got, err = p.fetchModules(ctx, t, e, version, func(files []string) []string { return files })
		return err == nil || slices.Contains(unforgivable, causeOf(err))
	})
	return got, errors.Join(waitErr, err)
}
