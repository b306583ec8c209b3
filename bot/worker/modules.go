package worker

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/larder-cdn/larder/bot/worker/esm"
)

// The input and the result of [BuildModules], in JSON.
type (
	ModulesRequest = esm.Request
	ModulesResult  = esm.Result
	ModuleFile     = esm.File
)

// ModulesMemory is what a child that builds modules may have, in bytes, besides several copies of its input.
const ModulesMemory = 256 << 20

// ModulesTime is the time limit of building modules, as a multiple of [Options.Timeout].
const ModulesTime = 6

// The limits of building modules, and where it puts their files.
const (
	MaxSubpaths     = esm.MaxSubpaths
	MaxModulesInput = esm.MaxInput
	ModulesFolder   = esm.Folder
	// ModulePatterns stands among the skipped subpaths for those that patterns in exports match.
	ModulePatterns = esm.Patterns
)

// ModuleBuilder returns the program, the version and the options that build modules here.
func ModuleBuilder() (program, version, options string) {
	return "esbuild", minifierVersion, esm.Options
}

// ReadsModuleInput reports whether building modules may need the file of a release with that path.
func ReadsModuleInput(file string) bool { return esm.Reads(file) }

// buildModules builds the modules of a release.
func buildModules(data []byte) ([]byte, error) {
	var q esm.Request
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("malformed request: %w", err)
	}
	for _, file := range slices.Sorted(maps.Keys(q.Files)) {
		switch path.Ext(file) {
		case ".js", ".mjs", ".cjs":
			if err := checkScript(q.Files[file]); err != nil {
				return nil, fmt.Errorf("%.200s: %w", file, err)
			}
		}
	}
	result, err := esm.Build(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}
