package testkit_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// The schema has the properties that the Go types have, at every level, and asks
// for those that are always written.
func TestSchemaAndTypes(t *testing.T) {
	compare(t, "entry", testkit.Schema(t, testkit.EntrySchema), reflect.TypeFor[logs.Entry]())
	compare(t, "manifest", testkit.Schema(t, testkit.ManifestSchema), reflect.TypeFor[logs.Manifest]())
	compare(t, "erasure", testkit.Schema(t, testkit.ErasureSchema), reflect.TypeFor[logs.Erasure]())
}

func compare(t *testing.T, at string, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	if s.Ref != nil {
		s = s.Ref
	}
	if typ.Kind() == reflect.Slice {
		compare(t, at+"[]", s.Items2020, typ.Elem())
		return
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
		return
	}
	var fields, always []string
	for _, field := range reflect.VisibleFields(typ) {
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		fields = append(fields, name)
		if option == "" {
			always = append(always, name)
		}
		if property := s.Properties[name]; property != nil {
			compare(t, at+"."+name, property, field.Type)
		}
	}
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(fields)
	slices.Sort(names)
	if !slices.Equal(names, fields) {
		t.Errorf("%s: the schema has %v, the Go type %v", at, names, fields)
	}
	required := slices.Sorted(slices.Values(s.Required))
	slices.Sort(always)
	if !slices.Equal(required, always) {
		t.Errorf("%s: the schema requires %v, the Go type always writes %v", at, required, always)
	}
	if s.AdditionalProperties != false {
		t.Errorf("%s: the schema lets unknown properties pass", at)
	}
}

func TestSchemaKnowsEveryKind(t *testing.T) {
	schema := testkit.Schema(t, testkit.EntrySchema)
	var kinds []logs.Kind
	for _, value := range schema.Properties["kind"].Enum.Values {
		kinds = append(kinds, logs.Kind(value.(string)))
	}
	if !slices.Equal(kinds, logs.Kinds) {
		t.Errorf("the schema has the kinds %v, the log %v", kinds, logs.Kinds)
	}
	if len(schema.AllOf) != len(logs.Kinds) {
		t.Errorf("the schema has rules for %d kinds of %d", len(schema.AllOf), len(logs.Kinds))
	}
}

// entries are examples of every kind, as they are written.
func entries() map[logs.Kind]logs.Entry {
	h := kvstore.Sum([]byte("a content"))
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	release := logs.Entry{Format: 1, Time: at, Actor: "bot", Package: "vue", Version: "3.5.0", Released: at}
	with := func(kind logs.Kind, change func(*logs.Entry)) logs.Entry {
		e := release
		e.Kind = kind
		change(&e)
		return e
	}
	signature := logs.Signature{Outcome: logs.SignatureVerified, Key: "SHA256:x", Text: "vue@3.5.0:sha512-x", Sig: "MEUC", PublicKey: "MFkw"}
	maker := logs.Maker{Program: "esbuild", Version: "0.28.2", Options: "--minify"}
	all := map[logs.Kind]logs.Entry{}
	for _, e := range []logs.Entry{
		{Format: 1, Kind: logs.PackageAdded, Time: at, Actor: "bot", Package: "vue", PackageJSON: h, Policy: logs.PolicyChange{New: "https://example.com/vue"}},
		{Format: 1, Kind: logs.PackageChanged, Time: at, Actor: "bot", Package: "vue", PackageJSON: h, Diff: h, Policy: logs.PolicyChange{Old: "https://example.com/vue"}},
		{Format: 1, Kind: logs.PackageRemoved, Time: at, Actor: "bot", Package: "vue", PackageJSON: h},
		{Format: 1, Kind: logs.KeyChanged, Time: at, Actor: "operator", Key: "a+01234567+AQ==", KeySignature: "— a AAAA"},
		{Format: 1, Kind: logs.LossAccepted, Time: at, Actor: "operator", Former: "a\n9\nAA==\n\n— a AAAA\n", Lost: logs.Range{From: 7, To: 9}},
		with(logs.Detected, func(*logs.Entry) {}),
		with(logs.Refused, func(e *logs.Entry) {
			e.Reason, e.Detail, e.Signature = "bad", h, logs.Signature{Outcome: logs.SignatureInvalid, Key: "SHA256:x"}
			e.Provenance = &logs.Provenance{Outcome: logs.AttestationMissing, Required: "https://example.com/vue"}
		}),
		with(logs.Processed, func(e *logs.Entry) { e.Manifest, e.Signature = h, logs.Signature{Outcome: logs.SignatureNoKeys} }),
		with(logs.Published, func(e *logs.Entry) {
			e.Manifest, e.Files, e.Signature, e.Provenance, e.Maker = h, h, signature, &logs.Provenance{
				Outcome: logs.AttestationVerified, Bundle: h, Repository: "https://example.com/vue", Commit: strings.Repeat("a", 40), Workflow: "https://example.com/vue/release.yml@v1",
				Publish: logs.Publish{Outcome: logs.AttestationInvalid, Reason: "bad", Bundle: h, Key: "SHA256:x", PublicKey: "MFkw"}, Required: "https://example.com/vue", Override: "why not",
			}, &maker
		}),
		with(logs.Mirrored, func(e *logs.Entry) {
			e.Manifest, e.Files = h, h
			e.Mirror = &logs.Mirror{Source: "larder:https://cdn.example.com", Proof: logs.ProofLog, Key: "a+01234567+AQ==", Entry: 7, Size: 9}
		}),
		with(logs.Confirmed, func(e *logs.Entry) {
			e.Manifest, e.Reason = h, "the same"
			e.Mirror = &logs.Mirror{Source: "cdnjs:https://cdn.example.com", Proof: logs.ProofNpm}
		}),
		with(logs.Replaced, func(e *logs.Entry) {
			e.Manifest, e.Files, e.Reason, e.Signature, e.Maker = h, h, "other bytes", signature, &maker
			e.Provenance = &logs.Provenance{Outcome: logs.AttestationUnverified, Reason: "the registry does not have it"}
		}),
		with(logs.Withdrawn, func(e *logs.Entry) {
			e.Manifest, e.Reason, e.Mirror = h, "malware", &logs.Mirror{Source: "larder:https://cdn.example.com", Proof: logs.ProofLog}
		}),
		with(logs.Restored, func(e *logs.Entry) {
			e.Manifest, e.Reason, e.Mirror = h, "a mistake", &logs.Mirror{Source: "larder:https://cdn.example.com", Proof: logs.ProofLog}
			e.Provenance = &logs.Provenance{Outcome: logs.AttestationMissing, Required: "https://example.com/vue", Override: "why not"}
		}),
		with(logs.Erased, func(e *logs.Entry) { e.Manifest, e.Reason, e.Erasure = h, "by order", h }),
		with(logs.UpstreamChanged, func(e *logs.Entry) {
			e.Manifest, e.Reason, e.Upstream = h, "gone", logs.UpstreamChange{Old: "sha512-x"}
		}),
	} {
		all[e.Kind] = e
	}
	return all
}

func TestEntriesOfEveryKind(t *testing.T) {
	examples := entries()
	for _, kind := range logs.Kinds {
		e, ok := examples[kind]
		if !ok {
			t.Errorf("no example is %s", kind)
		}
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if err := testkit.ValidateEntry(t, testkit.EntrySchema, data); err != nil {
			t.Errorf("%s: %v", data, err)
		}
		// Each field belongs to its kinds alone, and what a kind needs it has.
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		for _, other := range examples {
			more, err := json.Marshal(other)
			if err != nil {
				t.Fatal(err)
			}
			var foreign map[string]any
			if err := json.Unmarshal(more, &foreign); err != nil {
				t.Fatal(err)
			}
			for name, value := range foreign {
				if _, ok := fields[name]; ok {
					continue
				}
				fields[name] = value
				data, _ := json.Marshal(fields)
				if err := testkit.ValidateEntry(t, testkit.EntrySchema, data); err == nil {
					t.Errorf("a %s entry with %s passes", kind, name)
				}
				delete(fields, name)
			}
		}
		optional := map[string]bool{"released": true, "detail": true, "signature": true, "diff": true, "provenance": true, "maker": true, "policy": true}
		if kind == logs.Withdrawn || kind == logs.Restored {
			optional["mirror"] = true // of a release that was mirrored
		}
		if kind == logs.UpstreamChanged {
			optional["manifest"] = true // of a damaged row
		}
		for name, value := range fields {
			delete(fields, name)
			data, _ := json.Marshal(fields)
			if err := testkit.ValidateEntry(t, testkit.EntrySchema, data); err == nil != optional[name] {
				t.Errorf("a %s entry without %s: %v", kind, name, err)
			}
			fields[name] = value
		}
	}
}

func TestBadValues(t *testing.T) {
	good := entries()[logs.Withdrawn]
	for name, change := range map[string]func(map[string]any){
		"another format":       func(e map[string]any) { e["format"] = 2 },
		"an unknown kind":      func(e map[string]any) { e["kind"] = "eaten" },
		"a time with a zone":   func(e map[string]any) { e["time"] = "2026-01-02T12:00:00+01:00" },
		"too fine a time":      func(e map[string]any) { e["time"] = "2026-01-02T12:00:00.123456Z" },
		"a day that is none":   func(e map[string]any) { e["time"] = "2026-02-30T12:00:00Z" },
		"a stranger":           func(e map[string]any) { e["actor"] = "somebody" },
		"half a hash":          func(e map[string]any) { e["manifest"] = strings.Repeat("0", 32) },
		"a hash in upper case": func(e map[string]any) { e["manifest"] = strings.Repeat("A", 64) },
		"an endless reason":    func(e map[string]any) { e["reason"] = strings.Repeat("a", 2049) },
		"an unknown field":     func(e map[string]any) { e["colour"] = "red" },
	} {
		data, err := json.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		change(fields)
		if data, err = json.Marshal(fields); err != nil {
			t.Fatal(err)
		}
		if err := testkit.ValidateEntry(t, testkit.EntrySchema, data); err == nil {
			t.Errorf("%s passes: %s", name, data)
		}
	}
}
