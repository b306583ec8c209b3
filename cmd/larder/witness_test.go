package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWitness has larder witness follow a log, and then cosign what the log tells it of.
func TestWitness(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data, keys, folder := t.TempDir(), t.TempDir(), t.TempDir()
	stockNoise(t, data, 1, 1000)
	log := func(more ...string) *exec.Cmd {
		return exec.Command("larder", append([]string{"serve", "--data", data, "--keys", keys, "--log-origin", "log.example/one", "--listen", "127.0.0.1:0", "--private-listen", "off", "--log-level", "warn"}, more...)...)
	}
	witness := func(more ...string) *exec.Cmd {
		return exec.Command("larder", append([]string{"witness", "--keys", folder, "--listen", "127.0.0.1:0", "--private-listen", "off", "--log-level", "warn"}, more...)...)
	}
	until := func(url, says string) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			answer, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK && strings.Contains(string(body), says) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not say %q: %s, %v\n%s", url, says, answer.Status, err, body)
			}
		}
	}
	url, stop := startSaying(t, log(), "Larder serves ")
	at, end := startSaying(t, witness("--name", "witness.example", "--log", url), "The witness answers at ")
	until(fmt.Sprintf("%s/%x/checkpoint", at, sha256.Sum256([]byte("log.example/one"))), "— witness.example ")
	end()
	stop()

	at, _ = startSaying(t, witness("--log", filepath.Join(keys, "log.pub")), "The witness answers at ")
	for _, key := range witnessKeys(t, folder) {
		url, stop = startSaying(t, log("--witness", at+"#"+key), "Larder serves ")
		until(url+"/log/checkpoint", "— witness.example ")
		stop()
	}
}

// witnessKeys are the verifier keys of a witness.
func witnessKeys(t *testing.T, folder string) []string {
	t.Helper()
	pub, err := os.ReadFile(filepath.Join(folder, "witness.pub"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(pub))
}
