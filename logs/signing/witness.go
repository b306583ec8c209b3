package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// A Witness is somebody who sees to it that the log shows everybody the same: it
// signs a checkpoint too, once it has a proof that the log has only grown.
type Witness struct {
	// URL is what https://c2sp.org/tlog-witness calls the submission prefix,
	// without a slash at its end.
	URL string
	// Verifier checks the witness's cosignatures.
	Verifier note.Verifier
}

// ParseWitness reads a witness that is written as URL#KEY, where KEY is the
// witness's verifier key.
func ParseWitness(s string) (Witness, error) {
	const want = "must be a URL, # and a witness's verifier key, such as https://witness.example.com/#witness.example.com+0123abcd+BA…"
	prefix, key, ok := strings.Cut(s, "#")
	if !ok {
		return Witness{}, errors.New(want)
	}
	u, err := url.Parse(prefix)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" {
		return Witness{}, fmt.Errorf("%s; its URL is none", want)
	}
	v, err := witnessVerifier(key)
	if err != nil {
		return Witness{}, fmt.Errorf("%s; its key is none: %w", want, err)
	}
	return Witness{URL: strings.TrimRight(u.String(), "/"), Verifier: v}, nil
}

// witnessVerifier reads a verifier key for cosignatures. Some witnesses give the
// key for ordinary signatures, which the cosignatures are made with all the same.
func witnessVerifier(key string) (note.Verifier, error) {
	v, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		return nil, err
	}
	// It does not hold the key's hash against the key: a slip would go unnoticed.
	_, rest, _ := strings.Cut(key, "+")
	hash, encoded, _ := strings.Cut(rest, "+")
	if material, err := base64.StdEncoding.DecodeString(encoded); err == nil && material[0] == algEd25519 {
		_, err := note.NewVerifier(key)
		return v, err
	}
	if hash != fmt.Sprintf("%08x", v.KeyHash()) {
		return nil, fmt.Errorf("its hash is %08x, not %s", v.KeyHash(), hash)
	}
	return v, nil
}

// algEd25519 begins the keys for ordinary signatures.
const algEd25519 = 1

// A contradiction is what a witness says that has cosigned what this log does not
// have. Whatever is signed here with that key was on the disk before the witness saw
// it, so somebody else signs with it, or store and key folder are both from an old
// backup.
type contradiction struct{ what string }

func (e *contradiction) Error() string { return e.what }

// errBehind says that the log has what the witness has seen, but the checkpoint has
// not: it is to be signed again first.
var errBehind = errors.New("it has seen more than the checkpoint has")

// maxAnswer bounds what a witness may answer.
const maxAnswer = 64 << 10

// A witnessing is what one Signer knows about one witness.
type witnessing struct {
	Witness
	client *http.Client
	seen   int64 // the size of the log that the witness has seen, as far as is known
	agreed bool  // whether it has signed what was sent from here

	pause *backoff.ExponentialBackOff
	again time.Time // when it is asked again, after it failed; else zero
}

// ask gets the witness's cosignatures of a checkpoint, whose note has the
// signatures of the log only, and the log itself size entries.
func (w *witnessing) ask(ctx context.Context, signed Signed, size int64, tree tlog.HashReader) ([]note.Signature, error) {
	const most = 3 // it may not know what we think it does, and hear of the log from others meanwhile
	for range most {
		switch {
		case w.seen > size:
			return nil, &contradiction{fmt.Sprintf("it has cosigned %d entries, and here are %d", w.seen, size)}
		case w.seen > signed.Size:
			return nil, errBehind
		}
		body, err := w.request(signed, tree)
		if err != nil {
			return nil, err
		}
		answer, seen, err := w.post(ctx, body)
		if err != nil {
			return nil, err
		}
		if answer != nil {
			w.seen = signed.Size
			return w.cosignatures(signed, answer)
		}
		if seen == w.seen && seen == signed.Size && seen > 0 {
			return nil, &contradiction{fmt.Sprintf("it has cosigned another log of %d entries", seen)}
		}
		if seen == w.seen {
			return nil, fmt.Errorf("it says that it has seen %d entries, which is what it was told", seen)
		}
		w.seen = seen
	}
	return nil, errors.New("others tell it of the log at the same time")
}

// request is the body of add-checkpoint.
func (w *witnessing) request(signed Signed, tree tlog.HashReader) ([]byte, error) {
	body := fmt.Appendf(nil, "old %d\n", w.seen)
	if w.seen > 0 {
		proof, err := tlog.ProveTree(signed.Size, w.seen, tree)
		if err != nil {
			return nil, err
		}
		for _, h := range proof {
			body = fmt.Appendf(body, "%s\n", h)
		}
	}
	body = append(body, '\n')
	return append(body, signed.Note...), nil
}

// post returns the lines of signatures, or nil and the size of the log that the
// witness has seen.
func (w *witnessing) post(ctx context.Context, body []byte) (lines []byte, seen int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/add-checkpoint", bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Content-Type", "text/plain; charset=utf-8")
	response, err := w.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, 0, err
	case len(answer) > maxAnswer:
		return nil, 0, fmt.Errorf("its answer is over %d bytes", maxAnswer)
	case response.StatusCode == http.StatusOK:
		return append([]byte{}, answer...), 0, nil
	case response.StatusCode == http.StatusConflict && mediaType(response) == "text/x.tlog.size":
		text := strings.TrimSuffix(string(answer), "\n")
		seen, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seen < 0 || strconv.FormatInt(seen, 10) != text {
			return nil, 0, fmt.Errorf("it says that it has seen %.40q entries", text)
		}
		return nil, seen, nil
	case response.StatusCode == http.StatusUnprocessableEntity && w.seen > 0:
		return nil, 0, &contradiction{fmt.Sprintf("it says that this log does not continue the one of which it has cosigned %d entries", w.seen)}
	}
	return nil, 0, fmt.Errorf("it answers %s: %.200q", response.Status, answer)
}

func mediaType(r *http.Response) string {
	t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// cosignatures returns those of an answer that are the witness's.
func (w *witnessing) cosignatures(signed Signed, answer []byte) ([]note.Signature, error) {
	n, err := note.Open(append(bytes.Clone(signed.Note), answer...), note.VerifierList(w.Verifier))
	if err != nil {
		return nil, fmt.Errorf("its answer is no cosignature of the checkpoint: %w", err)
	}
	return n.Sigs, nil
}

// withSignatures takes the signatures of a checkpoint apart: the note with those
// of the log, and those of the witnesses.
func (s *Signer) withSignatures(signed Signed) (bare Signed, log, others []note.Signature, err error) {
	n, err := note.Open(signed.Note, s.keys.verifiers())
	if err != nil {
		return Signed{}, nil, nil, err
	}
	log = n.Sigs
	verifiers := make([]note.Verifier, len(s.witnesses))
	for i, w := range s.witnesses {
		verifiers[i] = w.Verifier
	}
	if n, err := note.Open(signed.Note, note.VerifierList(verifiers...)); err == nil {
		others = n.Sigs
	}
	bare.Checkpoint = signed.Checkpoint
	bare.Note, err = note.Sign(&note.Note{Text: n.Text, Sigs: log})
	return bare, log, others, err
}

// A cosigned is what one witness came to.
type cosigned struct {
	signatures []note.Signature
	err        error
}

// witness asks the witnesses that have not signed yet, all at once, and returns the
// checkpoint with the signatures that there are now. One that failed is left alone
// for a while, so that it does not hold up the others. Where one contradicts the log,
// nothing is signed any more, and the error is a [*RefusedError].
func (s *Signer) witness(ctx context.Context, signed Signed) (Signed, error) {
	s.mu.Lock()
	bare, log, others, err := s.withSignatures(signed)
	s.mu.Unlock()
	if err != nil {
		return Signed{}, err
	}
	size := s.options.Log.Checkpoint().Size
	answers := make(map[*witnessing]chan cosigned)
	for _, w := range s.witnesses {
		// What is on the disk from before may be older than what it has signed since.
		if w.agreed && hasSigned(others, w.Verifier) || time.Now().Before(w.again) {
			continue
		}
		answer := make(chan cosigned, 1)
		answers[w] = answer
		go func() {
			signatures, err := w.ask(ctx, bare, size, logs.Hashes(s.options.Store))
			answer <- cosigned{signatures, err}
		}()
	}
	var refused *RefusedError
	for _, w := range s.witnesses {
		if answers[w] == nil {
			continue
		}
		answer := <-answers[w]
		s.heard(ctx, w, answer.err)
		if answer.err == nil {
			others = slices.DeleteFunc(others, func(s note.Signature) bool { return isOf(s, w.Verifier) })
			others = append(others, answer.signatures...)
		}
		var c *contradiction
		if errors.As(answer.err, &c) && refused == nil {
			refused = w.refusal(c)
		}
	}
	if refused != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refuse(refused)
		return Signed{}, refused
	}
	signed.Note, err = note.Sign(&note.Note{Text: text(bare.Note), Sigs: append(log, others...)})
	return signed, err
}

// refusal says why nothing is signed after what the witness said.
func (w *witnessing) refusal(c *contradiction) *RefusedError {
	return &RefusedError{Reason: fmt.Sprintf("the witness %s contradicts this log: %s. Either the store and the key folder are both from an old backup: bring newer ones; "+
		"or somebody else signs with the same key: end that, and find out who; where it is the witness that is wrong, take it out of the configuration and start again", w.Verifier.Name(), c)}
}

// heard takes down what a witness came to.
func (s *Signer) heard(ctx context.Context, w *witnessing, err error) {
	outcome := "cosigned"
	switch {
	case err == nil:
		w.agreed = true
		w.again = time.Time{}
		w.pause.Reset()
	case ctx.Err() != nil: // we are stopping
		return
	case errors.Is(err, errBehind): // it is asked again at once
		return
	case errors.As(err, new(*contradiction)):
		outcome = "contradicted"
	default:
		outcome = "failed"
	}
	s.metrics.asked(w.Verifier.Name(), outcome)
	if outcome == "failed" {
		rest := w.pause.NextBackOff()
		w.again = time.Now().Add(rest)
		s.logger.Error("a witness did not sign the log; asking it again", "witness", w.Verifier.Name(), "url", w.URL, "err", err, "after", rest)
	}
}

// nextAsked returns when the first of the witnesses that failed is asked again.
func (s *Signer) nextAsked() (next time.Time, ok bool) {
	for _, w := range s.witnesses {
		if !w.again.IsZero() && (!ok || w.again.Before(next)) {
			next, ok = w.again, true
		}
	}
	return next, ok
}

func hasSigned(signatures []note.Signature, v note.Verifier) bool {
	return slices.ContainsFunc(signatures, func(s note.Signature) bool { return isOf(s, v) })
}

func isOf(s note.Signature, v note.Verifier) bool { return s.Name == v.Name() && s.Hash == v.KeyHash() }

// text is the part of a note that is signed.
func text(signed []byte) string {
	head, _, _ := bytes.Cut(signed, []byte("\n\n"))
	return string(head) + "\n"
}
