package testkit

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A Witness is one on loopback, as https://c2sp.org/tlog-witness asks for. It verifies what it is told with the note and
// tlog packages alone, so it shares no mistake with the code that asks it. It is safe for concurrent use.
type Witness struct {
	name   string
	key    ed25519.PrivateKey
	server *httptest.Server

	mu        sync.Mutex
	log       note.Verifier
	size      int64
	root      tlog.Hash
	latest    string // checkpoint, cosigned
	conflicts int
	requests  int
	instead   func(w http.ResponseWriter) bool
}

// StartWitness returns a witness of that name with a new key, which trusts the log's key. It
// runs until it is closed.
func StartWitness(name string, log note.Verifier) (*Witness, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	w := &Witness{name: name, key: key, log: log}
	w.server = httptest.NewServer(w)
	return w, nil
}

// Close stops it.
func (w *Witness) Close() { w.server.Close() }

// Key is its verifier key.
func (w *Witness) Key() string {
	return fmt.Sprintf("%s+%08x+%s", w.name, w.keyID(), base64.StdEncoding.EncodeToString(append([]byte{4}, w.key.Public().(ed25519.PublicKey)...)))
}

func (w *Witness) keyID() uint32 {
	id := sha256.New()
	fmt.Fprintf(id, "%s\n\x04%s", w.name, w.key.Public().(ed25519.PublicKey))
	return binary.BigEndian.Uint32(id.Sum(nil))
}

// URL is its submission prefix.
func (w *Witness) URL() string { return w.server.URL + "/prefix/" }

// Trust has it trust another key than before, of the same log or another one.
func (w *Witness) Trust(log note.Verifier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = log
}

// Forget has the witness no longer serve the checkpoint that it cosigned last.
func (w *Witness) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = ""
}

// Reset has it know of no log.
func (w *Witness) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size, w.root, w.latest = 0, tlog.Hash{}, ""
}

// Size is how many entries it has cosigned.
func (w *Witness) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

// Conflicts is how many times a client was wrong about Size.
func (w *Witness) Conflicts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conflicts
}

// Requests is how many checkpoints it was asked to cosign.
func (w *Witness) Requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests
}

// Instead has answer answer in its stead, as long as that returns true. No other handler is
// answered meanwhile.
func (w *Witness) Instead(answer func(w http.ResponseWriter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instead = answer
}

// ServeHTTP implements http.Handler.
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.instead != nil && w.instead(rw) {
		return
	}
	if w.latest != "" && r.Method == http.MethodGet && r.URL.Path == fmt.Sprintf("/prefix/%x/checkpoint", sha256.Sum256([]byte(w.log.Name()))) {
		io.WriteString(rw, w.latest)
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/prefix/add-checkpoint" {
		http.Error(rw, "no such thing", http.StatusNotFound)
		return
	}
	w.requests++
	status, answer := w.add(r.Body)
	if status == http.StatusConflict {
		w.conflicts++
		rw.Header().Set("Content-Type", "text/x.tlog.size")
	}
	rw.WriteHeader(status)
	io.WriteString(rw, answer)
}

func (w *Witness) add(body io.Reader) (status int, answer string) {
	in := bufio.NewReader(body)
	line, _ := in.ReadString('\n')
	old, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(line, "old "), "\n"), 10, 64)
	if err != nil || line != fmt.Sprintf("old %d\n", old) {
		return http.StatusBadRequest, "no old size"
	}
	var proof tlog.TreeProof
	for {
		line, err := in.ReadString('\n')
		if err != nil || len(proof) > 63 {
			return http.StatusBadRequest, "no proof"
		}
		if line == "\n" {
			break
		}
		h, err := tlog.ParseHash(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return http.StatusBadRequest, "no hash"
		}
		proof = append(proof, h)
	}
	signed, err := io.ReadAll(in)
	if err != nil {
		return http.StatusBadRequest, "no checkpoint"
	}
	n, err := note.Open(signed, note.VerifierList(w.log))
	if err != nil {
		return http.StatusForbidden, err.Error()
	}
	lines := strings.Split(n.Text, "\n")
	if lines[0] != w.log.Name() {
		return http.StatusNotFound, "no such log"
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || old > size {
		return http.StatusBadRequest, "no size"
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return http.StatusBadRequest, "no root"
	}
	if old != w.size {
		return http.StatusConflict, fmt.Sprintf("%d\n", w.size)
	}
	switch {
	case old == size && root != w.root:
		return http.StatusConflict, fmt.Sprintf("%d\n", w.size)
	case old == 0 && len(proof) > 0:
		return http.StatusUnprocessableEntity, "a proof of nothing"
	case old > 0:
		if err := tlog.CheckTree(proof, size, root, old, w.root); err != nil {
			return http.StatusUnprocessableEntity, err.Error()
		}
	}
	w.size, w.root = size, root
	cosignature := w.Cosign(n.Text, uint64(time.Now().Unix()))
	w.latest = string(signed) + cosignature
	return http.StatusOK, cosignature
}

// Cosign makes a cosignature's line.
func (w *Witness) Cosign(text string, time uint64) string {
	sig := binary.BigEndian.AppendUint32(nil, w.keyID())
	sig = binary.BigEndian.AppendUint64(sig, time)
	sig = append(sig, ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", time, text))...)
	return "— " + w.name + " " + base64.StdEncoding.EncodeToString(sig) + "\n"
}
