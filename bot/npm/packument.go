package npm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/text"
)

const (
	// maxValue bounds one value of a packument, a version's manifest for instance.
	maxValue = 16 << 20
	// maxVersions bounds the members of "versions", "time" and "dist-tags". The most versions that a
	// package has today are some ten thousand.
	maxVersions = 200_000
	// maxKept bounds what is kept of one version, in bytes.
	maxKept = 8 << 10
	// maxField bounds the name of a field in an error, in bytes.
	maxField = 200
)

// Packument is the metadata that a registry has about a package.
type Packument struct {
	Name string
	// DistTags are names for versions: "latest", "next"….
	DistTags map[string]string
	// Versions are the published ones by version. The strings are npm's: nothing is checked here.
	Versions map[string]Version
	// Time is when each version was published, unpublished ones too. Old or mirrored packages may lack it.
	Time map[string]time.Time
}

// Version is one version of a package.
type Version struct {
	Package, Version string
	// Published is when it was published, zero if the packument does not say.
	Published time.Time
	// Tarball is the URL that the packument gives.
	Tarball string
	// Integrity is the tarball's hashes as subresource integrity; Shasum its SHA-1, in hexadecimal.
	Integrity, Shasum string
	// UnpackedSize is the registry's claim in bytes, 0 if it makes none.
	UnpackedSize int64
	// Deprecated is the message of a deprecated version.
	Deprecated string
	// Signatures are the registry's signatures over name, version and integrity, as JSON.
	Signatures json.RawMessage
	// Attested says that the registry has an attestation of where this version was built: [Client.Attestations].
	Attested bool
	// Err is set where the manifest is malformed; the tarball of such a version cannot be got.
	Err error
}

// MalformedError says that a registry's response is not a packument.
type MalformedError struct {
	// Field is where, "versions.1.2.3" for instance; empty for the whole.
	Field  string
	Reason string
}

// Error says where the packument is malformed and why. It does not name the package.
func (e *MalformedError) Error() string {
	where := ""
	if e.Field != "" {
		where = fmt.Sprintf(" at %q", e.Field)
	}
	return fmt.Sprintf("malformed packument%s: %s (is the configured registry an npm registry?)", where, e.Reason)
}

// decodePackument decodes the packument of a package. It stores only what is needed, and holds at most about maxValue bytes of the rest in memory;
// a longer value is an error. A malformed manifest is none: it is in the version's Err. Errors are a *[MalformedError] and those of r.
func decodePackument(name string, r io.Reader) (*Packument, error) {
	return newDecoder(name, r).readPackument()
}

// decoder reads JSON in pieces, remembering where it is for errors.
type decoder struct {
	name    string
	in      *meter
	json    *json.Decoder
	members int // the most members of an object that is read in pieces
}

// newDecoder returns a decoder of the JSON about a package that r reads.
func newDecoder(name string, r io.Reader) *decoder {
	in := &meter{r: r, value: maxValue}
	return &decoder{name: name, in: in, json: json.NewDecoder(in), members: maxVersions}
}

// readPackument reads the packument of the decoder's package, to the end of the input. A packument of another package is an error, and so is one
// without versions, unless the package was unpublished.
func (d *decoder) readPackument() (*Packument, error) {
	p := &Packument{
		Name:     d.name,
		DistTags: make(map[string]string),
		Versions: make(map[string]Version),
		Time:     make(map[string]time.Time),
	}
	var found, unpublished bool
	err := d.readObject("", func(key string) error {
		switch key {
		case "name":
			var got string
			if err := d.readValue("name", &got); err != nil {
				return err
			}
			if got != d.name {
				return d.newMalformedError("name", "it is the one of %.200q", got)
			}
			return nil
		case "dist-tags":
			return d.readObject(key, func(tag string) error {
				var version string
				err := d.readValue(key+"."+tag, &version)
				p.DistTags[tag] = version
				return err
			})
		case "versions":
			found = true
			return d.readObject(key, func(version string) (err error) {
				p.Versions[version], err = d.readVersion(version)
				return err
			})
		case "time":
			return d.readObject(key, func(of string) error {
				if of == "unpublished" {
					unpublished = true // the package was taken back
					return d.readValue("time.unpublished", new(skipped))
				}
				var at string
				if err := d.readValue("time."+of, &at); err != nil {
					return err
				}
				if at := parseTime(at); !at.IsZero() && of != "created" && of != "modified" {
					p.Time[of] = at
				}
				return nil
			})
		}
		return d.readValue(key, new(skipped))
	})
	if err != nil {
		return nil, err
	}
	if _, err := d.json.Token(); err != io.EOF {
		return nil, d.newSyntaxError("", errors.New("more after its end"))
	}
	if !found && !unpublished {
		return nil, d.newMalformedError("versions", "missing")
	}
	for key, version := range p.Versions {
		version.Published = p.Time[key]
		p.Versions[key] = version
	}
	return p, nil
}

// readObject reads the object that a field has, "" for the outermost. It calls member for each key to read its value. In a field, null counts as an
// empty object. More members than the decoder allows are an error.
func (d *decoder) readObject(field string, member func(key string) error) error {
	d.in.allowValue(d.json)
	token, err := d.json.Token()
	if err != nil {
		return d.newSyntaxError(field, err)
	}
	if token == nil && field != "" {
		return nil
	}
	if token != json.Delim('{') {
		return d.newMalformedError(field, "not an object")
	}
	for n := 0; d.json.More(); n++ {
		if n == d.members {
			return d.newMalformedError(field, "more than %d members", d.members)
		}
		d.in.allowValue(d.json)
		key, err := d.json.Token()
		if err != nil {
			return d.newSyntaxError(field, err)
		}
		if err := member(key.(string)); err != nil {
			return err
		}
	}
	d.in.allowValue(d.json)
	if _, err := d.json.Token(); err != nil {
		return d.newSyntaxError(field, err)
	}
	return nil
}

// readValue decodes the next value into a variable. field is its name for errors. A value that is longer than the decoder allows, or of another type,
// is an error.
func (d *decoder) readValue(field string, into any) error {
	d.in.allowValue(d.json)
	if err := d.json.Decode(into); err != nil {
		return d.newSyntaxError(field, err)
	}
	return nil
}

// readVersion reads the manifest of the version key. A manifest with wrong or missing members is no error: Err in the result says so and affects that
// version only. An error says that the JSON is malformed or cannot be read.
func (d *decoder) readVersion(key string) (Version, error) {
	var manifest struct {
		Version    string          `json:"version"`
		Deprecated json.RawMessage `json:"deprecated"` // a message, though false and true occur
		Dist       *struct {
			Tarball      string          `json:"tarball"`
			Integrity    string          `json:"integrity"`
			Shasum       string          `json:"shasum"`
			UnpackedSize float64         `json:"unpackedSize"`
			Signatures   json.RawMessage `json:"signatures"`
			Attestations json.RawMessage `json:"attestations"`
		} `json:"dist"`
	}
	field := "versions." + key
	d.in.allowValue(d.json)
	err := d.json.Decode(&manifest)
	var wrong *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &wrong) {
		return Version{}, d.newSyntaxError(field, err)
	}
	v := Version{Package: d.name, Version: key}
	var message string
	var flag bool
	if json.Unmarshal(manifest.Deprecated, &message) == nil {
		v.Deprecated = message
	} else if json.Unmarshal(manifest.Deprecated, &flag) == nil && flag {
		v.Deprecated = "deprecated"
	}
	if dist := manifest.Dist; dist != nil {
		v.Tarball, v.Integrity, v.Shasum = dist.Tarball, dist.Integrity, dist.Shasum
		v.Signatures, v.Attested = dist.Signatures, hasProvenance(dist.Attestations)
		v.UnpackedSize = toCount(dist.UnpackedSize)
	}
	switch {
	case wrong != nil && wrong.Field != "":
		v.Err = d.newMalformedError(field+"."+wrong.Field, "unexpected %s", wrong.Value)
	case wrong != nil:
		v.Err = d.newMalformedError(field, "unexpected %s", wrong.Value)
	case manifest.Version != "" && manifest.Version != key:
		v.Err = d.newMalformedError(field+".version", "it says %.200q", manifest.Version)
	case v.Tarball == "":
		v.Err = d.newMalformedError(field+".dist.tarball", "missing")
	case len(key)+len(v.Tarball)+len(v.Integrity)+len(v.Shasum)+len(v.Signatures) > maxKept:
		v = Version{Package: d.name, Version: text.Short(key, maxField)}
		v.Err = d.newMalformedError(field, "more than %d bytes of what is kept for a version", maxKept)
	}
	if len(v.Deprecated) > maxKept {
		v.Deprecated = strings.ToValidUTF8(v.Deprecated[:maxKept], "")
	}
	return v, nil
}

// hasProvenance reports whether the attestations in a packument include one of provenance.
func hasProvenance(said json.RawMessage) bool {
	var named struct {
		Provenance struct {
			PredicateType string `json:"predicateType"`
		} `json:"provenance"`
	}
	return len(said) > 0 && json.Unmarshal(said, &named) == nil && named.Provenance.PredicateType != ""
}

// toCount returns an untrusted number as a count, without its fraction; 0 if it is negative or over 2^53.
func toCount(n float64) int64 {
	if n < 0 || n > 1<<53 {
		return 0
	}
	return int64(n)
}

// parseTime parses a time of RFC 3339, and returns it in UTC. It returns the zero time if the text is none.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// newMalformedError returns the *MalformedError of a field.
func (d *decoder) newMalformedError(field, reason string, args ...any) error {
	return &MalformedError{Field: text.Short(field, maxField), Reason: fmt.Sprintf(reason, args...)}
}

// newSyntaxError returns the error for an error of the JSON decoder. It returns a read error unchanged, because the caller decides by it
// whether to try again.
func (d *decoder) newSyntaxError(field string, err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case d.in.err != nil:
		return d.in.err
	case errors.Is(err, errLongValue):
		return d.newMalformedError(field, "a value of more than %d bytes", d.in.value)
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return d.newMalformedError(field, "it ends too early")
	case errors.As(err, &wrong):
		return d.newMalformedError(field, "unexpected %s", wrong.Value)
	}
	return d.newMalformedError(field, "%.200v", err)
}

// skipped takes any JSON value and keeps nothing.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

var errLongValue = errors.New("value too long")

// meter lets a JSON decoder have so many bytes for each value, because it keeps a whole value in memory.
type meter struct {
	r     io.Reader
	value int64 // the most bytes for a value
	read  int64
	most  int64 // what may be read until the next value
	err   error // what the reader said, other than io.EOF
}

// allowValue lets d read, for its next value, up to m.value bytes beyond those that it has decoded.
func (m *meter) allowValue(d *json.Decoder) { m.most = d.InputOffset() + m.value }

// Read implements io.Reader. It reads no more than allowValue has permitted, and then fails with errLongValue. It stores an error of the underlying
// reader, except io.EOF, in err.
func (m *meter) Read(p []byte) (int, error) {
	if m.most <= m.read {
		return 0, errLongValue
	}
	n, err := m.r.Read(p[:min(int64(len(p)), m.most-m.read)])
	m.read += int64(n)
	if err != nil && err != io.EOF {
		m.err = err
	}
	return n, err
}
