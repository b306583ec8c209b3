package npm

import (
	"net/url"
	"testing"
)

func TestAnonymous(t *testing.T) {
	c, err := newConfig([]setting{{key: "registry", values: []string{"https://user:secret@registry.example/npm/"}}})
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse("https://registry.example/npm/jquery")
	if err != nil {
		t.Fatal(err)
	}
	anonymous := c.Anonymous()
	if got := anonymous.authorizationFor(at); got != "" {
		t.Errorf("the anonymous configuration sends %q", got)
	}
	if c.authorizationFor(at) == "" || anonymous.Registry("jquery") != c.Registry("jquery") {
		t.Error("the configuration itself was changed, or the registry is another")
	}
}
