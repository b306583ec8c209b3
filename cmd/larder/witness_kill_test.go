package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A growingLog is a log of which a witness is told.
type growingLog struct {
	*testing.T
	signer note.Signer
	hashes tlog.HashReaderFunc
	stored []tlog.Hash
	size   int64
	entry  string // what entries begin with
}

func newGrowingLog(t *testing.T, signer note.Signer, entry string) *growingLog {
	l := &growingLog{T: t, signer: signer, entry: entry}
	l.hashes = func(indexes []int64) ([]tlog.Hash, error) {
		var hashes []tlog.Hash
		for _, i := range indexes {
			hashes = append(hashes, l.stored[i])
		}
		return hashes, nil
	}
	return l
}

// grow appends an entry.
func (l *growingLog) grow() {
	hashes, err := tlog.StoredHashes(l.size, fmt.Append(nil, l.entry, l.size), l.hashes)
	if err != nil {
		l.Fatal(err)
	}
	l.stored, l.size = append(l.stored, hashes...), l.size+1
}

// request is what a witness is told that has cosigned old entries.
func (l *growingLog) request(old int64) string {
	l.Helper()
	root, err := tlog.TreeHash(l.size, l.hashes)
	if err != nil {
		l.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", l.signer.Name(), l.size, root)}, l.signer)
	if err != nil {
		l.Fatal(err)
	}
	text := fmt.Sprintf("old %d\n", old)
	if old > 0 && old < l.size {
		proof, err := tlog.ProveTree(l.size, old, l.hashes)
		if err != nil {
			l.Fatal(err)
		}
		for _, h := range proof {
			text += base64.StdEncoding.EncodeToString(h[:]) + "\n"
		}
	}
	return text + "\n" + string(signed)
}

// A witness that is killed while it cosigns a log that grows has forgotten nothing that it answered: another history of the
// log gets no signature from it.
func TestWitnessKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	const origin = "log.example/killed"
	private, key, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	log := newGrowingLog(t, signer, "entry")
	folder := t.TempDir()
	told := filepath.Join(t.TempDir(), "log.pub")
	if err := os.WriteFile(told, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cosigned := int64(0) // entries of the newest checkpoint that an answer had a signature for
	for kill := range 5 {
		cmd := exec.Command("larder", "witness", "--keys", folder, "--name", "witness.example", "--log", told, "--listen", "127.0.0.1:0", "--private-listen", "off", "--log-level", "error")
		at, ended := awaitLine(t, cmd, "The witness answers at ")
		tell := func(body string) (int, string, error) {
			answer, err := http.Post(at+"/add-checkpoint", "text/plain", strings.NewReader(body))
			if err != nil {
				return 0, "", err
			}
			defer answer.Body.Close()
			said, err := io.ReadAll(answer.Body)
			return answer.StatusCode, string(said), err
		}
		if kill > 0 {
			has := checkpointSize(t, fmt.Sprintf("%s/%x/checkpoint", at, sha256.Sum256([]byte(origin))))
			if has < cosigned || has > log.size {
				t.Fatalf("after kill %d the witness has %d entries, and has cosigned %d of %d", kill, has, cosigned, log.size)
			}
			fork := newGrowingLog(t, signer, "other")
			for range log.size + 1 {
				fork.grow()
			}
			for _, old := range []int64{0, has} {
				if status, said, err := tell(fork.request(old)); err != nil || status == http.StatusOK {
					t.Fatalf("after kill %d another history gets %d %q, %v", kill, status, said, err)
				}
			}
			cosigned = has
		}
		for n := 0; ; n++ {
			log.grow()
			if n == 20 {
				go cmd.Process.Kill() // while it is asked
			}
			status, said, err := tell(log.request(cosigned))
			if err != nil {
				break
			}
			if status != http.StatusOK || !strings.HasPrefix(said, "— witness.example ") {
				t.Fatalf("the witness says %d %q", status, said)
			}
			cosigned = log.size
		}
		<-ended
	}
	if cosigned < 5*20 {
		t.Errorf("only %d entries were cosigned", cosigned)
	}
}

func checkpointSize(t *testing.T, url string) int64 {
	t.Helper()
	status, text := fetched(url)
	lines := strings.Split(text, "\n")
	if status != http.StatusOK || len(lines) < 3 {
		t.Fatalf("%s: %d %q", url, status, text)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
