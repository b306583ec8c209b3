package bot_test

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

func TestRegistrySignatures(t *testing.T) {
	key, other := npmtest.NewKey(t), npmtest.NewKey(t)
	stolen := *other
	stolen.ID = key.ID
	tests := []struct {
		name    string
		keys    []*npmtest.Key
		options []npmtest.Option
		state   views.StateKind
		want    logs.Signature
	}{
		{"signed", []*npmtest.Key{key}, []npmtest.Option{npmtest.Signed(key)}, views.Published, logs.Signature{Outcome: logs.SignatureVerified, Key: key.ID}},
		{"not signed", []*npmtest.Key{key}, nil, views.Published, logs.Signature{Outcome: logs.SignatureMissing}},
		{"no keys", nil, []npmtest.Option{npmtest.Signed(key)}, views.Published, logs.Signature{Outcome: logs.SignatureNoKeys}},
		{"wrong", []*npmtest.Key{key}, []npmtest.Option{npmtest.Signed(&stolen)}, views.Refused, logs.Signature{Outcome: logs.SignatureInvalid, Key: key.ID}},
		{"by an unknown key", []*npmtest.Key{key}, []npmtest.Option{npmtest.Signed(other)}, views.Failed, logs.Signature{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.register("a", fromNpm("a", "*.js"))
			if tt.keys != nil {
				r.registry.PublishKeys(tt.keys...)
			}
			r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, tt.options...)
			r.open()
			r.settle()
			if s := r.state("a", "1.0.0"); s.Kind != tt.state {
				t.Fatalf("state %+v, want %s", s, tt.state)
			}
			switch tt.state {
			case views.Published:
				if e := r.one(logs.Processed); e.Signature != tt.want {
					t.Errorf("the entry says %+v, want %+v", e.Signature, tt.want)
				}
				e := r.one(logs.Published)
				if e.Signature.WithoutText() != tt.want || e.Signature.HasText() != (tt.want.Outcome == logs.SignatureVerified) {
					t.Errorf("the entry of the publication says %+v, want %+v", e.Signature, tt.want)
				}
				if e.Signature.HasText() {
					if err := e.Signature.Check(); err != nil || !strings.HasPrefix(e.Signature.Text, "a@1.0.0:sha512-") {
						t.Errorf("of %q: %v", e.Signature.Text, err)
					}
					e.Signature.Text += "="
					if err := e.Signature.Check(); err == nil {
						t.Error("the signature is right for another text")
					}
				}
				if e.Provenance == nil || *e.Provenance != (logs.Provenance{Outcome: logs.AttestationMissing, Publish: logs.Publish{Outcome: logs.AttestationMissing}}) {
					t.Errorf("provenance %+v", e.Provenance)
				}
				if m := r.manifest("a", "1.0.0"); m.Source.Signature != tt.want {
					t.Errorf("the manifest says %+v, want %+v", m.Source.Signature, tt.want)
				}
			case views.Refused:
				if e := r.one(logs.Refused); e.Signature != tt.want || !strings.Contains(e.Reason, "signature") {
					t.Errorf("the entry is %+v, want %+v", e.Entry, tt.want)
				}
				if n := r.registry.Count("/a/-/"); n != 0 {
					t.Errorf("the tarball was fetched %d times", n)
				}
			}
			r.sound()
		})
	}
}

func TestShasumIsRecordedAsIntegrity(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", nil))
	r.open()
	r.once()
	if got := r.manifest("a", "1.0.0").Source.Integrity; !strings.HasPrefix(got, "sha1-") {
		t.Errorf("integrity %q", got)
	}
}
