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
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/archive"
)

// IntegrityError says that a tarball's bytes are not the ones that its packument promises, or that it
// promises none that could be checked. Where Got is set, the bytes may be those of a bad moment: an error
// page, a download that was cut short.
type IntegrityError struct {
	// Want is what the packument says; Got is the same hash of what came, empty where Want is unusable.
	Want, Got string
}

// Error says that the hashes differ, or that the packument has none that can be checked. It names neither package nor version.
func (e *IntegrityError) Error() string {
	switch {
	case e.Want == "":
		return "integrity unknown: the packument has neither dist.integrity nor dist.shasum"
	case e.Got == "":
		return fmt.Sprintf("integrity unknown: the packument has no usable hash, only %.200q", e.Want)
	}
	return fmt.Sprintf("integrity mismatch: the packument says %s, the tarball has %s", e.Want, e.Got)
}

// Tarball downloads the tarball of v into dst, which it truncates first, and compares it with the hash in the packument: the strongest of
// dist.integrity, else dist.shasum. If there is no usable hash or it differs, the error is an *[IntegrityError]; if v.Err is set, it is that.
// If dst cannot be written, the error is a *[fetch.LocalError]. Other errors are those of package fetch. After any error the content of dst is
// undefined. The caller closes dst.
func (c *Client) Tarball(ctx context.Context, v Version, dst *os.File) (err error) {
	defer v.wrapError(&err, "")
	if v.Err != nil {
		return v.Err
	}
	want, err := parseHashes(v)
	if err != nil {
		return err
	}
	target, err := c.config.tarballURL(v.Package, v.Tarball)
	if err != nil {
		return &MalformedError{Field: "versions." + text.Short(v.Version, maxField), Reason: err.Error()}
	}
	// Some servers call the tarball's own gzip a Content-Encoding. The bytes are wanted as they are.
	header := http.Header{"Accept-Encoding": {"identity"}}
	return c.fetch.Get(ctx, c.newRequest(target, header, c.o.TarballBytes), func(r *fetch.Response) error {
		if r.Status != http.StatusOK {
			return fmt.Errorf("the registry answers %d instead of a tarball", r.Status)
		}
		if err := fetch.Truncate(dst); err != nil {
			return err
		}
		sum := want.algorithm.new()
		if _, err := io.Copy(io.MultiWriter(fetch.LocalWriter(dst), sum), r.Body); err != nil {
			return err
		}
		return want.check(sum.Sum(nil))
	})
}

// Release downloads the tarball of v into dst after it has verified the registry's signature of v, and opens it without its root folder. Errors are
// those of [Client.Verify] and [Client.Tarball], and an *[archive.RefusedError] if the tarball is not an archive. dst must stay open while the source
// is walked.
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

// Reconnect closes idle connections, so that the next requests open new ones.
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

// hashes are the accepted hashes of a tarball with one algorithm.
type hashes struct {
	algorithm algorithm
	sums      [][]byte
	text      string // as the packument has it
	hex       bool   // shasum's notation
}

// parseHashes returns the hashes of a version's tarball, by dist.integrity or, only without one, dist.shasum. The error is an *[IntegrityError] if
// none of them can be used.
func parseHashes(v Version) (hashes, error) {
	none := &IntegrityError{Want: v.Integrity}
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

// parseIntegrity parses integrity metadata (W3C Subresource Integrity §3.5). Only the hashes of the strongest algorithm count, and one that matches
// is enough. It returns false if no hash can be used.
func parseIntegrity(integrity string) (hashes, bool) {
	for _, algorithm := range algorithms {
		if want := parseIntegrityOf(algorithm, integrity); len(want.sums) > 0 {
			return want, true
		}
	}
	return hashes{}, false
}

// parseIntegrityOf parses the hashes of one algorithm in integrity metadata.
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

// SameTarball reports whether a hash in the packument for v's tarball equals one in hash, the Hash of an earlier version record, by the strongest
// algorithm that both have. known is false if they have no algorithm in common.
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

// check returns an *IntegrityError unless got, the digest of a tarball's content by h's algorithm, is one of h.
func (h hashes) check(got []byte) error {
	if slices.ContainsFunc(h.sums, func(sum []byte) bool { return string(sum) == string(got) }) {
		return nil
	}
	e := &IntegrityError{Want: h.text}
	if h.hex {
		e.Got = hex.EncodeToString(got)
	} else {
		e.Got = h.algorithm.name + "-" + base64.StdEncoding.EncodeToString(got)
	}
	return e
}

// IsPermanent reports whether an error of Packument or Tarball is about the package or release itself, so that trying again gives the same:
// no usable hash, a wrong signature, a malformed packument, an invalid name, too many bytes, a forbidden address. Other errors are not
// permanent. Wrong bytes may be the error page of a proxy. [ErrNotFound] may change, because a mirror or a cache may lack what the
// packument lists. So may other statuses (401 and 403 depend on credentials or on the registry's state), certificates, redirects and a
// *[fetch.LocalError].
func IsPermanent(err error) bool {
	integrity, ok := errors.AsType[*IntegrityError](err)
	return ok && integrity.Got == "" || errors.As(err, new(*SignatureError)) || errors.As(err, new(*MalformedError)) ||
		errors.As(err, new(*NameError)) || errors.Is(err, fetch.ErrTooLarge) || errors.Is(err, fetch.ErrForbidden)
}
