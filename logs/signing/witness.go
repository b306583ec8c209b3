package signing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// maxAnswer bounds what a witness may answer, and the fields of its answer.
const maxAnswer = 64 << 10

// newClient returns what speaks to witnesses. It follows no redirect, and bounds the time
// of a whole answer.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxAnswer
	return &http.Client{
		Timeout:       witnessTimeout,
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A witness is what one Signer knows about one of its witnesses.
type witness struct {
	Witness
	client *http.Client
	seen   int64 // consult's: the size of the log that the witness has cosigned, as it said last

	// Guarded by Signer.mu.
	on     logs.Checkpoint // what lines are about
	note   []byte          // the note that was sent to it, which has another cosignature of the log each hour
	lines  []byte          // its cosignatures
	agrees bool            // whether it gave them to this Signer, and not to one before
	err    error           // why it did not at the last attempt
}

// A claim is what a witness says without proof: that it knows another tree of this log. An attacker
// on the network can say that too, so nothing follows from it but that the
// witness has not cosigned.
type claim struct{ what string }

func (e *claim) Error() string { return e.what + ", and has not proved it" }

// consult has the witness cosign what was signed last, whenever that is something else or has
// another cosignature of the log, until ctx ends. It waits longer and longer after failures.
func (s *Signer) consult(ctx context.Context, w *witness) {
	pause := newPause(s.options.Every)
	for s.await(ctx, func() bool { return s.last.Size > 0 && !(w.agrees && bytes.Equal(w.note, s.last.Note)) }) {
		err := s.ask(ctx, w)
		if ctx.Err() != nil {
			return
		}
		outcome, refused := "cosigned", errors.As(err, new(*RefusedError))
		switch {
		case refused, errors.As(err, new(*dispute)):
			outcome = "disputed"
		case errors.As(err, new(*claim)):
			outcome = "claimed"
		case err != nil:
			outcome = "failed"
		}
		s.metrics.asked(w.Verifier.Name(), outcome)
		if err == nil || refused {
			pause.Reset()
			continue
		}
		rest := pause.NextBackOff()
		level := slog.LevelWarn
		if s.failed(w, err) {
			level = slog.LevelError
		}
		s.logger.Log(ctx, level, "a witness did not sign the log; asking it again", "witness", w.Verifier.Name(), "url", w.URL, "err", err, "after", rest)
		if !sleep(ctx, rest) {
			return
		}
	}
}

// failed notes why a witness has not cosigned, and reports whether the log waits for it.
func (s *Signer) failed(w *witness, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.agrees, w.err = false, err
	s.notify()
	return !s.settled() && !s.hopeful()
}

// ask gets the witness's cosignatures of the last signed checkpoint.
func (s *Signer) ask(ctx context.Context, w *witness) error {
	const most = 3 // it may not know what it is expected to, and hear of the log from others meanwhile
	for range most {
		s.mu.Lock()
		signed := s.last
		s.mu.Unlock()
		if w.seen > signed.Size {
			return s.examine(ctx, w, &claim{fmt.Sprintf("it says that it has cosigned %d entries, and the last signed checkpoint is of %d", w.seen, signed.Size)})
		}
		response, answer, err := w.addCheckpoint(ctx, signed, logs.Hashes(s.options.Store))
		if err != nil {
			return err
		}
		switch {
		case response.StatusCode == http.StatusOK:
			lines, err := w.cosignatures(signed, answer)
			if err != nil {
				return err
			}
			w.seen = signed.Size
			return s.cosigned(w, signed, lines)
		case response.StatusCode == http.StatusUnprocessableEntity:
			what := "it says that this log does not continue the one that it has cosigned"
			if w.seen > 0 { // otherwise the Signer has yet to learn again of how many entries
				what += fmt.Sprintf(", of %d entries", w.seen)
			}
			return s.examine(ctx, w, &claim{what})
		case response.StatusCode != http.StatusConflict || mediaType(response) != "text/x.tlog.size":
			return fmt.Errorf("it answers %s: %.200q", response.Status, answer)
		}
		seen, err := parseSize(answer)
		switch {
		case err != nil:
			return err
		case seen == w.seen && seen == signed.Size:
			return s.examine(ctx, w, &claim{fmt.Sprintf("it says that it has cosigned another log of %d entries", seen)})
		case seen == w.seen:
			return fmt.Errorf("it reports the size %d, which is the one that the request named", seen)
		}
		w.seen = seen
	}
	return errors.New("others tell it of the log at the same time")
}

// addCheckpoint tells the witness of a checkpoint, with the proof that the log has only
// grown since the one that it has seen.
func (w *witness) addCheckpoint(ctx context.Context, signed Signed, tree tlog.HashReader) (*http.Response, []byte, error) {
	body := fmt.Appendf(nil, "old %d\n", w.seen)
	if w.seen > 0 {
		proof, err := tlog.ProveTree(signed.Size, w.seen, tree)
		if err != nil {
			return nil, nil, err
		}
		for _, h := range proof {
			body = fmt.Appendf(body, "%s\n", h)
		}
	}
	body = append(append(body, '\n'), signed.Note...)
	return w.send(ctx, http.MethodPost, "/add-checkpoint", body)
}

// latest asks the witness for the checkpoint that it cosigned last.
func (w *witness) latest(ctx context.Context, origin string) ([]byte, error) {
	response, answer, err := w.send(ctx, http.MethodGet, fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin))), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return answer, err
}

func (w *witness) send(ctx context.Context, method, path string, body []byte) (_ *http.Response, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, w.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", "text/plain; charset=utf-8")
	response, err := w.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = fmt.Errorf("its answer is over %d bytes", maxAnswer)
	}
	return response, answer, err
}

func mediaType(r *http.Response) string {
	t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// parseSize reads the size that a witness has cosigned, in the one form that there is.
func parseSize(answer []byte) (int64, error) {
	text := strings.TrimSuffix(string(answer), "\n")
	seen, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seen < 0 || strconv.FormatInt(seen, 10) != text {
		return 0, fmt.Errorf("it says that it has seen %.40q entries", text)
	}
	return seen, nil
}

// cosignatures returns the lines of an answer that are the witness's.
func (w *witness) cosignatures(signed Signed, answer []byte) ([]byte, error) {
	n, err := note.Open(append(bytes.Clone(signed.Note), answer...), note.VerifierList(w.Verifier))
	if err != nil {
		return nil, fmt.Errorf("its answer is no cosignature of the checkpoint: %w", err)
	}
	return signatureLines(n.Sigs), nil
}
