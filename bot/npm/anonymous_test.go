package npm

import (
	"net/url"
	"testing"

	"github.com/google/osv-scalibr/clients/datasource"
)

func TestAnonymous(t *testing.T) {
	c, err := newConfig(datasource.NPMRegistryConfig{ScopeURLs: map[string]string{"": "https://user:secret@registry.example/npm/"}})
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse("https://registry.example/npm/jquery")
	if err != nil {
		t.Fatal(err)
	}
	anonymous := c.Anonymous()
	if got := anonymous.authorization(at); got != "" {
		t.Errorf("the anonymous configuration sends %q", got)
	}
	if c.authorization(at) == "" || anonymous.Registry("jquery") != c.Registry("jquery") {
		t.Error("the configuration itself was changed, or the registry is another")
	}
}
