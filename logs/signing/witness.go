package signing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs"
)

// maxResponse bounds the body of a witness's response, and its headers, in bytes.
const maxResponse = 64 << 10

// newWitnessClient returns a client for requests to witnesses. It follows no redirect. A request, with reading its response,
// may take 10 seconds.
func newWitnessClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxResponse
	return &http.Client{
		Timeout:       witnessTimeout,
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A witness is the state of one of a Signer's witnesses.
type witness struct {
	Witness
	client *http.Client
	seen   int64 // consult's: the size of the log that the witness has cosigned, as it said last

	// Guarded by Signer.mu.
	cosignedTree logs.Checkpoint // what lines are about
	sentNote     []byte          // the note that was sent to it, which has another cosignature of the log each hour
	lines        []byte          // its cosignatures
	agrees       bool            // whether it gave them to this Signer, and not to one before
	err          error           // why it did not at the last attempt
}

// SilentWitnesses returns the witnesses that did not cosign at the last attempt, each with its URL and the reason, also if
// the others suffice. It leaves out those that no request was sent to yet.
func (s *Signer) SilentWitnesses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var silent []string
	for _, w := range s.witnesses {
		if w.err != nil && !w.agrees {
			silent = append(silent, fmt.Sprintf("%s (%s): %v", w.Verifier.Name(), w.URL, w.err))
		}
	}
	return silent
}

// A claim is a witness's unproven claim that it has seen another tree of this log. An attacker on the network can claim that too, so
// nothing follows from it except that the witness has not cosigned.
type claim struct{ what string }

// Error returns what the witness claims, and that it has not proved it.
func (e *claim) Error() string { return e.what + ", and has not proved it" }

// runWitness requests the cosignatures of one witness whenever the last signed checkpoint changes, until ctx ends or signing
// is refused. It counts each outcome, logs failures, and waits longer after each of them.
func (s *Signer) runWitness(ctx context.Context, w *witness) {
	pause := newBackoff(s.options.Every)
	for s.awaitCondition(ctx, func() bool { return s.last.Size > 0 && !(w.agrees && bytes.Equal(w.sentNote, s.last.Note)) }) {
		err := s.requestCosignatures(ctx, w)
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
		s.metrics.witnesses.WithLabelValues(w.Verifier.Name(), outcome).Inc()
		if err == nil || refused {
			pause.Reset()
			continue
		}
		rest := pause.NextBackOff()
		level := slog.LevelWarn
		if s.recordFailure(w, err) {
			level = slog.LevelError
		}
		s.logger.Log(ctx, level, "a witness did not sign the log; trying again", "witness", w.Verifier.Name(), "url", w.URL, "err", err, "after", rest)
		if retry.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// recordFailure stores why a witness has not cosigned, notifies waiters, and reports whether the log cannot continue without
// the witness: the last signed checkpoint is not published, and the other witnesses are too few.
func (s *Signer) recordFailure(w *witness, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.agrees, w.err = false, err
	s.notifyWaiters()
	return !s.isPublished() && !s.mayReachQuorum()
}

// requestCosignatures requests the witness's cosignatures of the last signed checkpoint and stores them. If the witness
// knows another size of the log, it tries again from that, up to three times. The error says why the witness has not
// cosigned: a claim or a dispute of another log, a [*RefusedError] if signing ends, or a failed request.
func (s *Signer) requestCosignatures(ctx context.Context, w *witness) error {
	const attempts = 3 // its size may be unknown here, and another process may submit checkpoints at the same time
	for range attempts {
		s.mu.Lock()
		signed := s.last
		s.mu.Unlock()
		if w.seen > signed.Size {
			return s.investigateClaim(ctx, w, &claim{fmt.Sprintf("it says that it has cosigned %d entries, and the last signed checkpoint is of %d", w.seen, signed.Size)})
		}
		response, answer, err := w.addCheckpoint(ctx, signed, logs.Hashes(s.options.Store))
		if err != nil {
			return err
		}
		mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
		switch {
		case response.StatusCode == http.StatusOK:
			lines, err := w.parseCosignatures(signed, answer)
			if err != nil {
				return err
			}
			w.seen = signed.Size
			return s.storeCosignatures(w, signed, lines)
		case response.StatusCode == http.StatusUnprocessableEntity:
			what := "it says that this log does not continue the one that it has cosigned"
			if w.seen > 0 { // otherwise the size is unknown after the last claim
				what += fmt.Sprintf(", of %d entries", w.seen)
			}
			return s.investigateClaim(ctx, w, &claim{what})
		case response.StatusCode != http.StatusConflict || mediaType != "text/x.tlog.size":
			return fmt.Errorf("it responds with %s: %.200q", response.Status, answer)
		}
		seen, err := parseSize(answer)
		switch {
		case err != nil:
			return err
		case seen == w.seen && seen == signed.Size:
			return s.investigateClaim(ctx, w, &claim{fmt.Sprintf("it says that it has cosigned another log of %d entries", seen)})
		case seen == w.seen:
			return fmt.Errorf("it reports the size %d, which is the one that the request named", seen)
		}
		w.seen = seen
	}
	return errors.New("another process submits checkpoints of the log to it at the same time")
}

// addCheckpoint sends a checkpoint to the witness, with the proof that the log has only grown since the w.seen entries that
// the witness has seen; these are not more than the checkpoint has. It returns the response, whatever its status, and the
// content of its body. tree reads the log's hashes.
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

// latestCosigned requests the signed checkpoint that the witness cosigned last of the log with the name origin. It does not
// verify it.
func (w *witness) latestCosigned(ctx context.Context, origin string) ([]byte, error) {
	response, answer, err := w.send(ctx, http.MethodGet, fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin))), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return answer, err
}

// send sends a request to the witness and returns the response, whatever its status, with its body closed, and the content
// of the body. A body over maxResponse is an error.
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
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err == nil && len(answer) > maxResponse {
		err = fmt.Errorf("its response has over %d bytes", maxResponse)
	}
	return response, answer, err
}

// parseSize parses the body of a response with the number of entries that a witness has cosigned: digits without leading
// zeros, with or without a line feed after them. Anything else is an error.
func parseSize(answer []byte) (int64, error) {
	text := strings.TrimSuffix(string(answer), "\n")
	seen, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seen < 0 || strconv.FormatInt(seen, 10) != text {
		return 0, fmt.Errorf("it says that it has seen %.40q entries", text)
	}
	return seen, nil
}

// parseCosignatures returns those signature lines of a response that are the witness's valid cosignatures of a checkpoint.
// None is an error.
func (w *witness) parseCosignatures(signed Signed, answer []byte) ([]byte, error) {
	n, err := note.Open(append(bytes.Clone(signed.Note), answer...), note.VerifierList(w.Verifier))
	if err != nil {
		return nil, fmt.Errorf("its response is not a cosignature of the checkpoint: %w", err)
	}
	return signatureLines(n.Sigs), nil
}
