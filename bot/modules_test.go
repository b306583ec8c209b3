package bot_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/logs/views"
)

// withModules is the autoupdate of a package whose modules are built.
func withModules(target, modules string) string {
	return `, "autoupdate": {"source": "npm", "target": "` + target + `", "fileMap": [{"basePath": "", "files": ["LICENSE", "esm/own.mjs"]}], "modules": ` + modules + `}`
}

// reactLike is a package like React 19: CommonJS only, for development or production, with a subpath that only Node.js can run.
var reactLike = map[string]string{
	"package.json": `{"name":"ui","version":"19.0.0","exports":{".":{"default":"./index.js"},"./client":"./client.js","./server":"./server.js"}}`,
	"LICENSE":      "MIT",
	"index.js":     `'use strict'; if (process.env.NODE_ENV === 'production') { module.exports = require('./cjs/ui.production.js'); } else { module.exports = require('./cjs/ui.development.js'); }`,

	"cjs/ui.production.js": `exports.useState = function (x) { return [x] }; exports.version = "19.0.0";`, "cjs/ui.development.js": `exports.useState = 1;`,
	"client.js": `var ui = require("ui"), scheduler = require("scheduler"); exports.createRoot = function () { return setImmediate(ui, scheduler) };`,
	"server.js": `exports.stream = require("stream");`,
}

// TestModules holds that a release gets the modules which its package JSON asks for, that they can be verified, and that one without is
// published all the same.
func TestModules(t *testing.T) {
	r := newRig(t)
	r.registry.Add("ui", "19.0.0", hour(1), reactLike)
	r.registry.Add("node-only", "1.0.0", hour(1), map[string]string{"LICENSE": "MIT", "index.js": `require("fs")`})
	r.registry.Add("taken", "1.0.0", hour(1), map[string]string{"LICENSE": "MIT", "index.js": `exports.a = 1`, "esm/own.mjs": `export {}`, "own.js": `exports.b = 1`})
	r.register("ui", withModules("ui", "true"))
	r.register("node-only", withModules("node-only", "true"))
	r.register("taken", withModules("taken", `["./own"]`))
	r.register("without", withModules("ui", "false"))
	r.newest = startsWith
	r.open()
	r.agree(r.npm) // lint and show-files say what the bot does
	r.auditNow()
	m := r.manifest("ui", "19.0.0")
	built := m.About.Modules
	if built == nil || built.Problem != "" || built.Subpaths["."] != "esm/index.mjs" || built.Subpaths["./client"] != "esm/client.mjs" || len(built.Subpaths) != 2 {
		t.Fatalf("%+v\n%s", built, m.Notes)
	}
	if !strings.Contains(built.Skipped["./server"], `imports "stream" of Node.js`) || !strings.Contains(strings.Join(m.Notes, "\n"), `no module was built for "./server"`) {
		t.Errorf("%q %q", built.Skipped, m.Notes)
	}
	if imports := strings.Join(built.Imports["esm/client.mjs"], " "); !strings.Contains(imports, "scheduler") || !strings.Contains(imports, "./chunks/") || strings.Contains(imports, "ui") {
		t.Errorf("the client imports %s", imports)
	}
	if built.Inputs["index.js"].String() == "" || len(built.Inputs) != 4 {
		t.Errorf("inputs %v", built.Inputs)
	}
	if text := r.file("ui", "19.0.0", "esm/index.mjs"); !strings.Contains(text, "as useState") || strings.Contains(text, "development") {
		t.Errorf("%s", text)
	}
	for name, want := range map[string]string{"node-only": `index.js imports "fs" of Node.js`, "taken": "publishes another file at esm/own.mjs"} {
		m := r.manifest(name, "1.0.0")
		if m.About == nil || m.About.Modules == nil || !strings.Contains(m.About.Modules.Problem, want) || len(m.Files) > 2 {
			t.Errorf("%s: %+v %s", name, m.About, paths(m))
		}
		s, err := bot.ReadStatus(r.store, name)
		if err == nil {
			err = s.AddModuleProblems(r.store)
		}
		if err != nil || !strings.Contains(strings.Join(m.Notes, "\n"), "no modules were built: ") || len(s.Packages) != 1 || !strings.Contains(strings.Join(s.Packages[0].Notes, "\n"), "1.0.0 was published without modules: ") {
			t.Errorf("%s: notes %q, status %+v, %v", name, m.Notes, s, err)
		}
	}
	s, err := bot.ReadStatus(r.store, "ui")
	if err == nil {
		err = s.AddModuleProblems(r.store)
	}
	if err != nil || len(s.Packages) != 1 || !strings.Contains(strings.Join(s.Packages[0].Notes, "\n"), `19.0.0: no module was built for "./server": server.js imports "stream" of Node.js`) {
		t.Errorf("status %+v, %v", s, err)
	}
	const throws = "code that uses globals which only Node.js has throws in browsers: client.js (setImmediate)"
	if !strings.Contains(strings.Join(s.Packages[0].Notes, "\n"), "19.0.0: "+throws) || !slices.Contains(m.Notes, throws) {
		t.Errorf("status %+v, notes %q", s, m.Notes)
	}
	if m := r.manifest("without", "19.0.0"); paths(m) != "LICENSE" || m.About != nil && m.About.Modules != nil {
		t.Errorf("%s %+v", paths(m), m.About)
	}
	r.sound()

	// Building them again from upstream gives the same.
	r.audit()
	if note, differs := r.note("ui", "19.0.0"); !strings.Contains(note, "1 file byte for byte, and 6 files made again") || differs {
		t.Errorf("%q, %v", note, differs)
	}

	// A release that is published already gains none.
	r.register("without", withModules("ui", "true"))
	r.open()
	r.once()
	if m := r.manifest("without", "19.0.0"); paths(m) != "LICENSE" || m.About != nil && m.About.Modules != nil {
		t.Errorf("modules were added to a published release: %s %+v", paths(m), m.About)
	}
}

// TestModulesAfterKilledBuild holds that a build whose process was killed delays the release, and does not have it published without modules.
func TestModulesAfterKilledBuild(t *testing.T) {
	r := newRig(t)
	r.registry.Add("ui", "19.0.0", hour(1), reactLike)
	r.register("ui", withModules("ui", "true"))
	r.worker = mortal(t, 1)
	r.open()
	r.once()
	s, err := views.LookupState(r.store, "ui", "19.0.0")
	if err != nil || s.Kind != views.Failed || !strings.Contains(s.Reason, "couldn't build modules: build-modules: the process ended") {
		t.Fatalf("%+v, %v", s, err)
	}
	r.setNow(s.Next)
	r.once()
	if m := r.manifest("ui", "19.0.0"); len(m.About.Modules.Subpaths) != 2 {
		t.Errorf("%+v", m.About.Modules)
	}
}
