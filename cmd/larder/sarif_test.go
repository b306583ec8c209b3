package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/larder-cdn/larder/logs/verify"
)

func TestWritePageSARIF(t *testing.T) {
	r := verify.PageReport{Page: "dir/index.html", References: []verify.Referred{{
		Reference: verify.Reference{Kind: verify.ClassicScript, URL: "https://cdn.example.com/a.js", Line: 7}, Outcome: verify.Unproven,
		Findings: []verify.Finding{{Rule: verify.RuleOutcome, Error: true, Message: "unproven: x"}, {Rule: verify.RuleOutdated, Message: "old"}},
	}}}
	age := int64(7200)
	r.Logs = []*verify.SessionLog{
		{Server: "https://cdn.example.com", Origin: "cdn.example.com/log", Size: 12, Cosigned: time.Unix(1e9, 0), Age: &age},
		{Server: "https://old.example.com", Origin: "old.example.com/log", Size: 1},
		{Server: "https://bad.example.com", Outcome: verify.Expired, Problem: "an old checkpoint"},
	}
	var b bytes.Buffer
	if err := writePageSARIF(&b, &r, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(b.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	schema := jsonschema.NewCompiler().MustCompile("../../packages/lint/testdata/sarif-schema-2.1.0.json")
	if err := schema.Validate(document); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"the log cdn.example.com/log has 12 entries, signed and cosigned 2 hours ago", "old.example.com/log has 1 entry, signed and of unknown age", "the log of https://bad.example.com: an old checkpoint"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
	if !strings.Contains(b.String(), `"level": "error"`) || !strings.Contains(b.String(), `"startLine": 7`) {
		t.Errorf("%s", b.String())
	}
}
