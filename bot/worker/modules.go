package worker

import (
	"encoding/json"
	"fmt"
	"path"

	"github.com/larder-cdn/larder/bot/worker/esm"
)

// The input and the result of [BuildModules], in JSON.
type (
	ModulesRequest = esm.Request
	ModulesResult  = esm.Result
	ModuleFile     = esm.File
)

// ModulesMemory is what a child that builds modules may have, in bytes, besides several copies of its input. It is a third more
// than three and lucide-react need, so that a build does not fail at one time and succeed at another.
const ModulesMemory = 384 << 20

// The limits of building modules, and where it puts their files.
const (
	MaxSubpaths      = esm.MaxSubpaths
	MaxModulesInput  = esm.MaxInput
	MaxModulesOutput = esm.MaxOutput
	MaxModulesFiles  = esm.MaxFiles
	ModulesFolder    = esm.Folder
	ModuleExtension  = esm.Extension
	// OtherSubpaths stands among the skipped subpaths for those beyond MaxSubpaths.
	OtherSubpaths = esm.Others
)

// ModuleBuilder returns the program that builds modules here ("esbuild"), its version, and its options, as a record of how
// modules were built.
func ModuleBuilder() (program, version, options string) {
	return "esbuild", minifierVersion, esm.Options
}

// IsModuleInput reports whether building modules may need the file of a release with that path, by its extension.
func IsModuleInput(file string) bool { return esm.IsInput(file) }

// buildModules is the function of the task [BuildModules]. data is a [ModulesRequest] in JSON, with the contents of the release's
// files. The result is a [ModulesResult] in JSON, with the files of the modules and the skipped subpaths. buildModules reads
// nothing else. It skips subpaths that import scripts or style sheets that would take esbuild long. The error says that the
// request is malformed, or why the release has no modules at all, such as a package.json that is missing.
func buildModules(data []byte) ([]byte, error) {
	var q esm.Request
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("malformed request: %w", err)
	}
	result, err := esm.Build(q, func(file string, data []byte) error {
		switch path.Ext(file) {
		case ".js", ".mjs", ".cjs":
			return checkScriptCost(data)
		case ".css":
			return checkStyles(data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}
