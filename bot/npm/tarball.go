package npm

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages/archive"
)

// IntegrityError says that a tarball's bytes are not the ones that its packument promises, or that it
// promises none that could be checked. Where Got is set, the bytes may be those of a bad moment: an error
// page, a download that was cut short.
type IntegrityError struct {
	Package, Version string
	// Want is what the packument says; Got is the same hash of what came, empty where Want is unusable.
	Want, Got string
}

func (e *IntegrityError) Error() string {
	switch {
	case e.Want == "":
		return "integrity unknown: the packument has neither dist.integrity nor dist.shasum"
	case e.Got == "":
		return fmt.Sprintf("integrity unknown: the packument has no usable hash, only %.200q", e.Want)
	}
	return fmt.Sprintf("integrity mismatch: the packument says %s, the tarball has %s", e.Want, e.Got)
}

// Tarball gets the tarball of v into dst, which is emptied first, and compares it with the hash that the
// packument gives: the strongest of dist.integrity, else dist.shasum. Where that does not match or
// is missing, the error is an *[IntegrityError]; where dst cannot be written, it is a *[fetch.LocalError].
// After any error dst's content is worth nothing.
func (c *Client) Tarball(ctx context.Context, v Version, dst *os.File) error {
	if err := c.tarball(ctx, v, dst); err != nil {
		return fmt.Errorf("npm package %s %s: %w", v.Package, v.Version, err)
	}
	return nil
}

func (c *Client) tarball(ctx context.Context, v Version, dst *os.File) error {
	if v.Err != nil {
		return v.Err
	}
	want, err := parseHashes(v)
	if err != nil {
		return err
	}
	target, err := c.config.tarballURL(v.Package, v.Tarball)
	if err != nil {
		return &MalformedError{Package: v.Package, Field: "versions." + shorten(v.Version), Reason: err.Error()}
	}
	// Some servers call the tarball's own gzip a Content-Encoding. The bytes are wanted as they are.
	header := http.Header{"Accept-Encoding": {"identity"}}
	return c.fetch.Get(ctx, c.request(target, header, c.o.TarballBytes), func(r *fetch.Response) error {
		if r.Status != http.StatusOK {
			return fmt.Errorf("the registry answers %d instead of a tarball", r.Status)
		}
		if _, err := dst.Seek(0, io.SeekStart); err != nil {
			return fetch.NewLocalError(err)
		}
		if err := dst.Truncate(0); err != nil {
			return fetch.NewLocalError(err)
		}
		sum := want.algorithm.new()
		if _, err := io.Copy(io.MultiWriter(fetch.LocalWriter(dst), sum), r.Body); err != nil {
			return err
		}
		return want.check(v, sum.Sum(nil))
	})
}

// Release gets the tarball of v into dst and opens it, once what the registry has signed of v is verified. Errors are
// those of [Client.Verify] and [Client.Tarball], and an [archive.RefusedError] for a tarball that is none.
func (c *Client) Release(ctx context.Context, v Version, dst *os.File) (archive.Source, Signed, error) {
	signed, err := c.Verify(ctx, v)
	if err != nil {
		return archive.Source{}, Signed{}, err
	}
	if err := c.Tarball(ctx, v, dst); err != nil {
		return archive.Source{}, Signed{}, err
	}
	opened, err := archive.OpenDownload(dst)
	if err != nil {
		return archive.Source{}, Signed{}, &archive.RefusedError{Reason: err.Error()}
	}
	return opened.StripRoot(), signed, nil
}

// Reconnect has the next requests open connections anew.
func (c *Client) Reconnect() { c.fetch.Reconnect() }

// algorithm is a hash that subresource integrity knows.
type algorithm struct {
	name string
	new  func() hash.Hash
	size int
}

// algorithms are the usable ones, strongest first. SHA-1 is what registries had before integrity came;
// for many old releases there is nothing else.
var algorithms = []algorithm{
	{"sha512", sha512.New, sha512.Size},
	{"sha384", sha512.New384, sha512.Size384},
	{"sha256", sha256.New, sha256.Size},
	{"sha1", sha1.New, sha1.Size},
}

// hashes are what a tarball may hash to with one algorithm.
type hashes struct {
	algorithm algorithm
	sums      [][]byte
	text      string // as the packument has it
	hex       bool   // shasum's notation
}

// parseHashes returns the hashes that a version's tarball must have.
func parseHashes(v Version) (hashes, error) {
	none := &IntegrityError{Package: v.Package, Version: v.Version, Want: v.Integrity}
	switch {
	case v.Integrity != "":
		if want, ok := parseIntegrity(v.Integrity); ok {
			return want, nil
		}
	case v.Shasum != "":
		weakest := algorithms[len(algorithms)-1]
		if sum, err := hex.DecodeString(v.Shasum); err == nil && len(sum) == weakest.size {
			return hashes{algorithm: weakest, sums: [][]byte{sum}, text: v.Shasum, hex: true}, nil
		}
		none.Want = v.Shasum
	}
	return hashes{}, none
}

// parseIntegrity reads integrity metadata (W3C Subresource Integrity §3.5): of several hashes only those
// of the strongest algorithm count, and one that matches is enough.
func parseIntegrity(integrity string) (hashes, bool) {
	for _, algorithm := range algorithms {
		if want := parseIntegrityOf(algorithm, integrity); len(want.sums) > 0 {
			return want, true
		}
	}
	return hashes{}, false
}

// parseIntegrityOf reads the hashes of one algorithm.
func parseIntegrityOf(algorithm algorithm, integrity string) hashes {
	want := hashes{algorithm: algorithm}
	var kept []string
	for token := range strings.FieldsSeq(integrity) {
		encoded, ok := strings.CutPrefix(token, algorithm.name+"-")
		encoded, _, _ = strings.Cut(encoded, "?") // options, of which none exist
		sum, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
		if ok && err == nil && len(sum) == algorithm.size {
			want.sums = append(want.sums, sum)
			kept = append(kept, token)
		}
	}
	want.text = strings.Join(kept, " ")
	return want
}

// SameTarball compares what the packument says of v's tarball with the Hash of a version that was seen
// before. Known is false where they have no algorithm in common.
func (v Version) SameTarball(hash string) (same, known bool) {
	for _, algorithm := range algorithms {
		have := parseIntegrityOf(algorithm, v.Integrity).sums
		if algorithm.name == "sha1" {
			if sum, err := hex.DecodeString(v.Shasum); err == nil && len(sum) == algorithm.size {
				have = append(have, sum)
			}
		}
		before := parseIntegrityOf(algorithm, hash).sums
		if len(have) == 0 || len(before) == 0 {
			continue
		}
		return slices.ContainsFunc(have, func(sum []byte) bool {
			return slices.ContainsFunc(before, func(b []byte) bool { return string(b) == string(sum) })
		}), true
	}
	return false, false
}

func (h hashes) check(v Version, got []byte) error {
	if slices.ContainsFunc(h.sums, func(sum []byte) bool { return string(sum) == string(got) }) {
		return nil
	}
	e := &IntegrityError{Package: v.Package, Version: v.Version, Want: h.text}
	if h.hex {
		e.Got = hex.EncodeToString(got)
	} else {
		e.Got = h.algorithm.name + "-" + base64.StdEncoding.EncodeToString(got)
	}
	return e
}

// IsPermanent reports whether err, of Packument or Tarball, is about the package or release itself, so
// that it comes again however often that is tried: no usable hash, a signature that is wrong, a malformed
// packument, an impossible name, too many bytes, an address that the rules forbid.
//
// Everything else may pass and is not permanent. Bytes that break their promise may be a proxy's error page.
// [ErrNotFound] is permanent least of all: a mirror or a cache may not have yet what the packument lists. Neither are other statuses (a 401 or 403 is a matter of credentials
// or of a registry's mood), certificates, redirects and a *[fetch.LocalError].
func IsPermanent(err error) bool {
	var integrity *IntegrityError
	var signature *SignatureError
	var malformed *MalformedError
	var name *NameError
	return errors.As(err, &integrity) && integrity.Got == "" || errors.As(err, &signature) || errors.As(err, &malformed) || errors.As(err, &name) ||
		errors.Is(err, fetch.ErrTooLarge) || errors.Is(err, fetch.ErrForbidden)
}
