package github_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
)

func appKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// An app gets a token, keeps it, and gets another one before that ends, or when it is not taken any more.
func TestApp(t *testing.T) {
	key := appKey(t)
	synctest.Test(t, func(t *testing.T) {
		hub := githubtest.New(token)
		if err := hub.Add("example/catalogue", t.TempDir(), "main"); err != nil {
			t.Fatal(err)
		}
		hub.App("4711", &key.PublicKey)
		client := func(key *rsa.PrivateKey, id string) *github.Client {
			c, err := github.New(github.Options{Transport: hub, App: &github.App{ID: id, Key: key, Repository: "example/catalogue"}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		made := func() (n int) {
			for _, q := range hub.Requests() {
				if strings.HasSuffix(q.Path, "/access_tokens") {
					n++
				}
			}
			return n
		}
		c := client(key, "4711")
		ask := func() error {
			_, _, err := c.Repositories.Get(t.Context(), "example", "catalogue")
			return err
		}
		for _, step := range []struct {
			after time.Duration
			want  int // tokens
		}{{0, 1}, {54 * time.Minute, 1}, {2 * time.Minute, 2}, {54 * time.Minute, 2}, {5 * time.Hour, 3}} {
			time.Sleep(step.after)
			if err := ask(); err != nil || made() != step.want {
				t.Errorf("after %s: %d tokens, %v", step.after, made(), err)
			}
		}
		hub.App("4711", &key.PublicKey) // which forgets the tokens
		if err := ask(); github.Status(err) != 401 {
			t.Errorf("%v", err)
		}
		if err := ask(); err != nil {
			t.Errorf("no new token after one that was refused: %v", err)
		}
		for name, c := range map[string]*github.Client{"another key": client(appKey(t), "4711"), "another id": client(key, "4712")} {
			_, _, err := c.Repositories.Get(t.Context(), "example", "catalogue")
			if err == nil || !strings.Contains(github.Describe(err), "couldn't find where the GitHub App 471") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestParseAppKey(t *testing.T) {
	key := appKey(t)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		text    []byte
		refused string
	}{
		"as GitHub makes it": {pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), ""},
		"PKCS #8":            {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), ""},
		"a curve":            {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: other}), "not an RSA key"},
		"rubbish":            {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "cannot be read"},
		"no PEM":             {[]byte("secret"), "no PEM"},
	} {
		got, err := github.ParseAppKey(tt.text)
		switch {
		case tt.refused == "" && (err != nil || !got.Equal(key)):
			t.Errorf("%s: %v", name, err)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused) || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, app := range []*github.App{{}, {ID: "1", Key: key}, {ID: "1", Repository: "o/r"}, {Key: key, Repository: "o/r"}} {
		if _, err := github.New(github.Options{App: app}); err == nil {
			t.Errorf("%+v is taken", app.ID)
		}
	}
}
