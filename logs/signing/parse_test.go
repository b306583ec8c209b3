package signing_test

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/signing"
)

func TestParseWitness(t *testing.T) {
	key := newWitness(t, "witness.example", nil).Key()
	ordinary := "log.example+cae7438d+AWJY8NjnXhthBWAcFrCjbVGGfs03Ez5rpU8VPPvHyhzv"
	for s, want := range map[string]string{
		"https://witness.example#" + key:                                      "https://witness.example",
		"https://witness.example/a/b/#" + key:                                 "https://witness.example/a/b",
		"http://127.0.0.1:8000/#" + ordinary:                                  "http://127.0.0.1:8000",
		"https://witness.example":                                             "",
		"#" + key:                                                             "",
		"witness.example#" + key:                                              "",
		"ftp://witness.example#" + key:                                        "",
		"https://witness.example?a#" + key:                                    "",
		"https://witness.example#":                                            "",
		"https://witness.example#" + strings.Replace(key, "+", "+0", 1):       "",
		"https://witness.example#" + strings.Replace(key, "wit", "tiw", 1):    "",
		"https://witness.example#" + strings.Replace(ordinary, "ca", "ac", 1): "",
		"https://witness.example#" + key + "AAAA":                             "",
	} {
		w, err := signing.ParseWitness(s)
		if (err == nil) != (want != "") || w.URL != want {
			t.Errorf("%s: %q, %v; want %q", s, w.URL, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "must be a URL, # and a witness's verifier key") {
			t.Errorf("%s: %v", s, err)
		}
	}
}
