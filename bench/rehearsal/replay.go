package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// A replayProxy is between a mirror and its source. It passes requests on, and may replay a checkpoint.
type replayProxy struct {
	url    string
	server *http.Server
	mu     sync.Mutex
	note   []byte // nil: the source's own
}

func newReplayProxy(source string) (*replayProxy, error) {
	target, err := url.Parse(source)
	if err != nil {
		return nil, err
	}
	pass := newReverseProxy(target)
	x := &replayProxy{}
	x.server, err = serveHTTP("127.0.1.7:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if note := x.replayed(); note != nil && r.URL.Path == "/log/checkpoint" {
			tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(note)))
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(note))
			return
		}
		pass.ServeHTTP(w, r)
	}))
	if err != nil {
		return nil, err
	}
	x.url = "http://" + x.server.Addr
	return x, nil
}

func (x *replayProxy) replayed() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.note
}

// replay has the proxy respond with a checkpoint, or pass on the source's if it is nil.
func (x *replayProxy) replay(note []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.note = note
}

// ageCheckpoint returns a signed checkpoint with the log's signature and, in place of its cosignatures, one by the same key of an
// earlier time: what a source shows that has been frozen since.
func ageCheckpoint(note, key []byte, at time.Time) ([]byte, error) {
	text, signatures, ok := bytes.Cut(note, []byte("\n\n"))
	parts := strings.SplitN(strings.TrimSpace(string(key)), "+", 5) // PRIVATE, KEY, name, hash and base64, which may contain +
	if !ok || len(parts) != 5 {
		return nil, errors.New("not a signed checkpoint, or not a private key")
	}
	secret, err := base64.StdEncoding.DecodeString(parts[4])
	if err != nil || len(secret) != 1+ed25519.SeedSize {
		return nil, fmt.Errorf("not an Ed25519 key: %w", err)
	}
	name, private := parts[2], ed25519.NewKeyFromSeed(secret[1:])
	public, _ := private.Public().(ed25519.PublicKey)
	text = append(slices.Clone(text), '\n')
	id := sha256.Sum256(append([]byte(name+"\n\x04"), public...))
	cosignature := binary.BigEndian.AppendUint64(slices.Clone(id[:4]), uint64(at.Unix()))
	cosignature = append(cosignature, ed25519.Sign(private, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at.Unix(), text))...)
	first, _, _ := bytes.Cut(signatures, []byte("\n"))
	return fmt.Appendf(nil, "%s\n%s\n— %s %s\n", text, first, name, base64.StdEncoding.EncodeToString(cosignature)), nil
}
