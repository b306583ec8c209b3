// Package witness cosigns the checkpoints of logs (https://c2sp.org/tlog-witness): a log submits a checkpoint, with a proof that the log
// has only grown since the last one that the witness has signed. A log that shows different entries to two clients cannot have both
// checkpoints cosigned.
//
// It guarantees:
//
//   - Of one log, it never cosigns two checkpoints of which one does not continue the other, not even after a power failure: a
//     checkpoint is on the disk before its cosignature is sent.
//   - It stores what proves to anyone that a log has forked, as [signing.Evidence]: two checkpoints of one size with different roots,
//     and, of a polled log, those of which the larger one does not contain the smaller one.
//   - It accepts only checkpoints that are signed with a key that the operator has named.
//
// The package must not know what is in a log.
package witness

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/signing"
)

// Options configure a [Witness].
type Options struct {
	// Folder has the keys of the witness, and what it has cosigned. It is created if it does not exist. Required.
	Folder string
	// Name is that of its keys, such as witness.example.com/larder. Required if there are no keys yet.
	Name string
	// Logs are verifier keys of logs (https://c2sp.org/signed-note), whose names are the logs' origins, several of a log that has
	// changed its key; and URLs of Larders, whose logs [Witness.Run] polls too, and whose first seen key counts.
	Logs []string
	// Logger logs what was cosigned and refused. Default: nothing is logged.
	Logger *slog.Logger
	// Now is the clock by which cosignatures of polled logs are renewed. Default: [time.Now].
	Now func() time.Time
}

// A Witness cosigns checkpoints of logs. It is an http.Handler, safe for concurrent use.
type Witness struct {
	folder  *folder
	signers []note.Signer
	keys    []string // their verifier keys
	logger  *slog.Logger
	now     func() time.Time
	sources []*source

	mu   sync.Mutex
	logs map[string]*witnessed // by origin
}

// A witnessed is a log that the witness cosigns.
type witnessed struct {
	origin string

	mu     sync.Mutex
	keys   []note.Verifier
	texts  []string       // the same keys as text
	latest signing.Signed // the checkpoint that was cosigned last
	note   []byte         // latest with the cosignatures
	signed time.Time      // when this process cosigned it, zero if it has not
}

// Limits of a request.
const (
	maxRequest = 64 << 10 // bytes
	maxProof   = 63       // hashes
)

// Open opens the witness of a folder, which no other process may have open. It creates the folder and the keys if necessary.
// It sends no request; [Witness.Run] polls.
func Open(o Options) (_ *Witness, err error) {
	w := &Witness{logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), now: o.Now, logs: make(map[string]*witnessed)}
	if w.now == nil {
		w.now = time.Now
	}
	if w.folder, err = openFolder(o.Folder); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.signers, w.keys, err = w.folder.readSigners(o.Name); err != nil {
		return nil, err
	}
	for _, text := range o.Logs {
		if strings.Contains(text, "://") {
			err = w.addSource(text)
		} else {
			_, err = w.addKey(text)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, l := range w.logs {
		if err := w.folder.readCheckpoint(l); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// addKey accepts signatures by a verifier key for the log whose origin is the key's name, and returns that log, which it registers
// if it is new. It changes only memory: the caller then reads the log's stored checkpoint. A key that is known already is no
// error; a malformed one is.
func (w *Witness) addKey(key string) (*witnessed, error) {
	v, err := note.NewVerifier(key)
	if err != nil {
		return nil, fmt.Errorf("%.200q is not the verifier key of a log: %w", key, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.logs[v.Name()]
	if l == nil {
		l = &witnessed{origin: v.Name()}
		w.logs[v.Name()] = l
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.keys, func(k note.Verifier) bool { return k.KeyHash() == v.KeyHash() }) {
		l.keys, l.texts = append(l.keys, v), append(l.texts, key)
	}
	return l, nil
}

// logByOrigin returns the log with a name, nil if it is not witnessed.
func (w *Witness) logByOrigin(origin string) *witnessed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs[origin]
}

// Close unlocks the folder. It may be called again.
func (w *Witness) Close() error { return w.folder.close() }

// Keys returns the verifier keys of the witness (https://c2sp.org/tlog-cosignature): Ed25519, and ML-DSA-44, which resists
// quantum computers too.
func (w *Witness) Keys() []string { return slices.Clone(w.keys) }

// ServeHTTP implements http.Handler. POST /add-checkpoint cosigns a checkpoint, and GET /{SHA-256 of the origin}/checkpoint
// returns the one that was cosigned last. Any other path is 404.
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.URL.Path == "/add-checkpoint" && r.Method == http.MethodPost:
		w.serveAddCheckpoint(rw, r)
	case r.URL.Path == "/add-checkpoint":
		rw.Header().Set("Allow", http.MethodPost)
		http.Error(rw, "send a checkpoint of a log with POST", http.StatusMethodNotAllowed)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		w.serveCheckpoint(rw, r)
	default:
		http.Error(rw, "there is nothing else here", http.StatusNotFound)
	}
}

// serveCheckpoint responds with the last cosigned checkpoint of the log in the path, or 404 if none was cosigned.
func (w *Witness) serveCheckpoint(rw http.ResponseWriter, r *http.Request) {
	cosigned := w.lastCosignedNote(r.URL.Path)
	if cosigned == nil {
		http.Error(rw, "no checkpoint of such a log was cosigned", http.StatusNotFound)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.Header().Set("Cache-Control", "no-cache")
	_, _ = rw.Write(cosigned)
}

// lastCosignedNote returns the last cosigned checkpoint, with the cosignatures, of the log in a request's path, nil if no
// such checkpoint was cosigned.
func (w *Witness) lastCosignedNote(path string) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for origin, l := range w.logs {
		if path == fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin))) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.note
		}
	}
	return nil
}

// emptyRoot is the root of the tree without entries.
var emptyRoot = tlog.Hash(sha256.Sum256(nil))

// A refusal says why a checkpoint is not cosigned, with an HTTP status.
type refusal struct {
	status int
	reason string
}

// Error returns the reason, without the status.
func (e *refusal) Error() string { return e.reason }

// refusef returns a refusal with an HTTP status and a formatted message.
func refusef(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// An outdated error says that a request's old size is not the size that was cosigned last.
type outdated struct{ latest int64 }

// Error returns the size that was cosigned last, in words.
func (e *outdated) Error() string {
	return fmt.Sprintf("the last checkpoint cosigned is of %d entries", e.latest)
}

// serveAddCheckpoint responds to POST /add-checkpoint with the cosignatures, or with the status of the refusal; with the
// size that was cosigned last (409) if the request named another one. It logs an error of storing the checkpoint, and
// responds with 500.
func (w *Witness) serveAddCheckpoint(rw http.ResponseWriter, r *http.Request) {
	lines, err := w.addCheckpoint(http.MaxBytesReader(rw, r.Body, maxRequest))
	var refused *refusal
	var old *outdated
	switch {
	case errors.As(err, &old):
		rw.Header().Set("Content-Type", "text/x.tlog.size")
		rw.WriteHeader(http.StatusConflict)
		fmt.Fprintf(rw, "%d\n", old.latest)
	case errors.As(err, &refused):
		http.Error(rw, refused.reason, refused.status)
	case err != nil:
		w.logger.Error("couldn't cosign", "err", err)
		http.Error(rw, "the witness cannot store what it signs", http.StatusInternalServerError)
	default:
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = rw.Write(lines)
	}
}

// addCheckpoint parses the body of a request, verifies its checkpoint and proof, cosigns the checkpoint, and returns the
// cosignature lines. The error is a refusal, an outdated, or says that the witness could not store what it signs.
func (w *Witness) addCheckpoint(body io.Reader) ([]byte, error) {
	old, proof, checkpoint, err := parseRequest(body)
	if err != nil {
		return nil, err
	}
	origin, _, _ := strings.Cut(string(checkpoint), "\n")
	l := w.logByOrigin(origin)
	if l == nil {
		return nil, refusef(http.StatusNotFound, "the log %.100q is not witnessed here", origin)
	}
	signed, err := l.openCheckpoint(checkpoint)
	if err != nil {
		return nil, err
	}
	if old > signed.Size {
		return nil, refusef(http.StatusBadRequest, "the old size %d is larger than the checkpoint's, %d", old, signed.Size)
	}
	return w.cosignAfter(l, old, signed, func(last signing.Signed) error {
		switch {
		case old > 0 && old < signed.Size:
			return tlog.CheckTree(proof, signed.Size, signed.Root, old, last.Root)
		case len(proof) > 0:
			return errors.New("the proof has to be empty")
		}
		return nil
	})
}

// parseRequest parses the body of a request: the size of the old checkpoint, a consistency proof and a signed checkpoint,
// and verifies none of them. The error is a refusal.
func parseRequest(body io.Reader) (old int64, proof tlog.TreeProof, checkpoint []byte, err error) {
	malformed := func(why string) (int64, tlog.TreeProof, []byte, error) {
		return 0, nil, nil, refusef(http.StatusBadRequest, "the request is malformed: %s", why)
	}
	data, incomplete := io.ReadAll(body)
	before, checkpoint, ended := bytes.Cut(data, []byte("\n\n"))
	lines := strings.Split(string(before), "\n")
	text, ok := strings.CutPrefix(lines[0], "old ")
	old, err = strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || !ok || old < 0 || strconv.FormatInt(old, 10) != text:
		return malformed("its first line is not the old size")
	case !ended:
		return malformed("no empty line ends the proof")
	case len(lines) > 1+maxProof:
		return malformed("the proof has too many lines")
	}
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			return malformed("a line of the proof is not a hash")
		}
		proof = append(proof, h)
	}
	if errors.As(incomplete, new(*http.MaxBytesError)) {
		return 0, nil, nil, refusef(http.StatusRequestEntityTooLarge, "a request has at most %d bytes", maxRequest)
	}
	if incomplete != nil {
		return malformed("it is not complete")
	}
	return old, proof, checkpoint, nil
}

// openCheckpoint verifies a signed checkpoint with the log's keys, and parses it. The error is a refusal.
func (l *witnessed) openCheckpoint(checkpoint []byte) (signing.Signed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := note.Open(checkpoint, note.VerifierList(l.keys...)); err != nil {
		if errors.As(err, new(*note.UnverifiedNoteError)) || errors.As(err, new(*note.InvalidSignatureError)) {
			return signing.Signed{}, refusef(http.StatusForbidden, "no key of the log %s that is known here has signed that", l.origin)
		}
		return signing.Signed{}, refusef(http.StatusBadRequest, "the checkpoint is malformed: %v", err)
	}
	for _, key := range l.keys {
		signed, err := signing.OpenWith(checkpoint, key, nil)
		if err == nil {
			return signed, nil
		}
	}
	return signing.Signed{}, refusef(http.StatusBadRequest, "what is signed is not a checkpoint of the log %s", l.origin)
}

// cosignAfter cosigns a checkpoint if it continues the one that was cosigned last, whose size must be old, stores it, and
// returns the cosignature lines. checkContinues returns an error unless the checkpoint continues last; it is called with
// l.mu held. The error is an outdated if old is another size, a refusal, or says that nothing could be stored or signed. If
// the checkpoint has the size of the last one and another root, evidence of that is stored.
func (w *Witness) cosignAfter(l *witnessed, old int64, signed signing.Signed, checkContinues func(last signing.Signed) error) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.latest
	if signed.Size == last.Size && last.Note != nil && signed.Root != last.Root {
		if err := w.folder.storeEvidence(l.origin, l.forkEvidence(last.Note, signed.Note)); err != nil {
			return nil, err
		}
		w.logger.Error("a log has signed two trees of one size; the evidence is stored", "log", l.origin, "entries", signed.Size, "folder", w.folder.dir)
	}
	if old != last.Size {
		return nil, &outdated{last.Size}
	}
	if last.Size == 0 {
		last.Root = emptyRoot
	}
	if old == signed.Size && signed.Root != last.Root { // after a response with the size, the log would send the same again
		return nil, refusef(http.StatusConflict, "another tree of %d entries was cosigned, or the tree of none has another root", signed.Size)
	}
	if err := checkContinues(last); errors.As(err, new(*refusal)) {
		return nil, err
	} else if err != nil {
		w.logger.Warn("a log does not prove that it continues what was cosigned", "log", l.origin, "cosigned", old, "entries", signed.Size)
		return nil, refusef(http.StatusUnprocessableEntity, "the proof does not lead from the %d entries cosigned last to these %d", old, signed.Size)
	}
	lines, err := w.cosignatureLines(signed)
	if err != nil {
		return nil, err
	}
	cosigned := append(bytes.Clone(signed.Note), lines...)
	if err := w.folder.replace(w.folder.checkpointFile(l.origin), cosigned, 0o644); err != nil {
		return nil, err
	}
	l.latest, l.note, l.signed = signed, cosigned, w.now()
	w.logger.Info("cosigned a log", "log", l.origin, "entries", signed.Size)
	return lines, nil
}

// forkEvidence returns the encoded proof that two signed checkpoints of one size have different roots, for `larder verify
// --evidence`, if one of the log's keys that are known here has signed both. Otherwise it returns both of them, with an
// empty line between. It stores nothing. The caller holds l.mu.
func (l *witnessed) forkEvidence(one, other []byte) []byte {
	if e, err := signing.NewEvidence(l.texts, nil, one, other, nil); err == nil {
		if proof, err := e.Encode(); err == nil {
			return proof
		}
	}
	return bytes.Join([][]byte{one, other}, []byte("\n"))
}

// cosignatureLines returns the lines of a note with the witness's new cosignatures of a checkpoint, one by each of its keys.
// It verifies and stores nothing.
func (w *Witness) cosignatureLines(signed signing.Signed) ([]byte, error) {
	text, _, _ := bytes.Cut(signed.Note, []byte("\n\n"))
	n, err := note.Sign(&note.Note{Text: string(text) + "\n"}, w.signers...)
	if err != nil {
		return nil, err
	}
	_, lines, _ := bytes.Cut(n, []byte("\n\n"))
	return lines, nil
}
