package testkit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// The parts of the schema.
const (
	EntrySchema    = ""
	ManifestSchema = "#/$defs/manifest"
	ErasureSchema  = "#/$defs/erasure"
)

var compiler = sync.OnceValues(func() (*jsonschema.Compiler, error) {
	data, err := readDoc("log-entry.schema.json")
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return c, c.AddResource(document.(map[string]any)["$id"].(string), document)
})

// readDoc reads a file of docs, from whichever package's folder the tests run in.
func readDoc(name string) ([]byte, error) {
	for dir := "."; ; dir = filepath.Join(dir, "..") {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.ReadFile(filepath.Join(dir, "docs", name))
		}
		if len(dir) > 100 {
			return nil, fmt.Errorf("no go.mod above the tests' folder, so docs/%s cannot be found", name)
		}
	}
}

// compiling serialises compiler, which is none of the concurrent kind.
var compiling sync.Mutex

// Schema returns a part of the schema.
func Schema(tb testing.TB, part string) *jsonschema.Schema {
	tb.Helper()
	compiling.Lock()
	defer compiling.Unlock()
	c, err := compiler()
	if err != nil {
		tb.Fatal(err)
	}
	schema, err := c.Compile("urn:larder:log-entry" + part)
	if err != nil {
		tb.Fatal(err)
	}
	return schema
}

// ValidateEntry returns what is wrong with a document.
func ValidateEntry(tb testing.TB, part string, document []byte) error {
	tb.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return err
	}
	return Schema(tb, part).Validate(value)
}

// CheckEntries fails the test where an entry in a store, or a manifest or erasure that it
// names, is not as the schema has it. It returns how many entries there are of each
// kind.
func CheckEntries(tb testing.TB, store *kvstore.Store) map[logs.Kind]int {
	tb.Helper()
	kinds := make(map[logs.Kind]int)
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			tb.Fatal(err)
		}
		kinds[e.Kind]++
		if err := ValidateEntry(tb, EntrySchema, e.Raw); err != nil {
			tb.Errorf("entry %d, %s: %v", e.Index, e.Raw, err)
		}
		for part, h := range map[string]kvstore.Hash{ManifestSchema: e.Manifest, ErasureSchema: e.Erasure} {
			if h == (kvstore.Hash{}) {
				continue
			}
			data, err := store.Identity(h)
			if err != nil {
				tb.Errorf("entry %d: %v", e.Index, err)
				continue
			}
			if err := ValidateEntry(tb, part, data); err != nil {
				tb.Errorf("entry %d names %s: %v", e.Index, data, err)
			}
		}
	}
	return kinds
}
