package signing

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// A Witness sees to it that the log shows every client the same: it signs a checkpoint
// too, once it has a proof that the log has only grown.
type Witness struct {
	// URL is what https://c2sp.org/tlog-witness calls the submission prefix, without a
	// slash at its end; "" for one that cannot be asked from here.
	URL string
	// Verifier checks the witness's cosignatures.
	Verifier note.Verifier
}

// A Policy says which witnesses are asked, and whose cosignatures a checkpoint needs
// before it is shown. Nil asks none and needs none.
type Policy struct {
	witnesses []Witness
	origins   []string // of the logs that it is for; nil for any
	quorum    quorum
}

// A quorum reports whether the witnesses that has names, by their place in the policy, are
// enough.
type quorum func(has func(witness int) bool) bool

func single(witness int) quorum {
	return func(has func(int) bool) bool { return has(witness) }
}

func atLeast(k int, members []quorum) quorum {
	return func(has func(int) bool) bool {
		n := 0
		for _, member := range members {
			if member(has) {
				n++
			}
		}
		return n >= k
	}
}

// Majority returns the policy that more than half of the witnesses have to cosign. Any two
// majorities have a witness in common, so no two of them confirm different logs unless
// that one lies.
func Majority(witnesses ...Witness) *Policy {
	p := &Policy{witnesses: witnesses}
	var all []quorum
	for i := range witnesses {
		all = append(all, single(i))
	}
	p.quorum = atLeast(len(all)/2+1, all)
	return p
}

// The limits of a policy's text. The specification wants at least 32 of each kind.
const (
	maxPolicy = 256 << 10 // bytes
	maxOfKind = 32        // logs, witnesses, groups
)

// ParsePolicy reads a policy as https://c2sp.org/tlog-policy has it.
func ParsePolicy(text []byte) (*Policy, error) {
	if len(text) > maxPolicy {
		return nil, fmt.Errorf("the policy has %d bytes; at most %d are read", len(text), maxPolicy)
	}
	p := policyParser{names: map[string]quorum{}, members: map[string]bool{}, keys: map[string]bool{}, counts: map[string]int{}}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if err := p.line(string(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if p.quorum == nil {
		return nil, errors.New("the policy has no quorum line; `quorum none` needs no cosignatures")
	}
	if !p.quorum(func(i int) bool { return p.witnesses[i].URL != "" }) {
		return nil, errors.New("the quorum needs witnesses without a URL, which cannot be asked for their cosignatures")
	}
	return &p.Policy, nil
}

type policyParser struct {
	Policy
	names   map[string]quorum // of witnesses and groups
	members map[string]bool   // the names that are in a group
	keys    map[string]bool   // by the kind of their line
	counts  map[string]int    // of lines, by kind
}

func (p *policyParser) line(line string) error {
	for _, c := range []byte(line) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("it has the control character 0x%02x; lines end with a line feed alone", c)
		}
	}
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
		return nil
	}
	kind, fields := fields[0], fields[1:]
	if p.counts[kind]++; p.counts[kind] > maxOfKind {
		return fmt.Errorf("there are more than %d %s lines", maxOfKind, kind)
	}
	switch {
	case kind == "log" && (len(fields) == 1 || len(fields) == 2):
		return p.log(fields[0])
	case kind == "witness" && len(fields) == 2:
		return p.witness(fields[0], fields[1], "")
	case kind == "witness" && len(fields) == 3:
		return p.witness(fields[0], fields[1], fields[2])
	case kind == "group" && len(fields) >= 3:
		return p.group(fields[0], fields[1], fields[2:])
	case kind == "quorum" && len(fields) == 1:
		return p.setQuorum(fields[0])
	}
	return fmt.Errorf("%.40q is none of: log KEY [URL], witness NAME KEY [URL], group NAME K|any|all MEMBER…, quorum NAME|none", line)
}

func (p *policyParser) log(key string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return fmt.Errorf("the log's key is none: %w", err)
	}
	p.origins = append(p.origins, v.Name())
	return p.once("log", key)
}

func (p *policyParser) witness(name, key, prefix string) error {
	w := Witness{}
	var err error
	if w.Verifier, err = witnessVerifier(key); err != nil {
		return fmt.Errorf("the key of the witness %s is none: %w", name, err)
	}
	if prefix != "" {
		if w.URL, err = submissionPrefix(prefix); err != nil {
			return fmt.Errorf("the URL of the witness %s %w", name, err)
		}
	}
	if err := p.once("witness", key); err != nil {
		return err
	}
	p.witnesses = append(p.witnesses, w)
	return p.define(name, single(len(p.witnesses)-1))
}

// once returns an error where a line of the kind has had the same public key, under
// whatever name.
func (p *policyParser) once(kind, key string) error {
	id := kind + string(keyMaterial(key)[1:])
	if p.keys[id] {
		return fmt.Errorf("another %s has the same key", kind)
	}
	p.keys[id] = true
	return nil
}

func (p *policyParser) group(name, threshold string, members []string) error {
	k, err := strconv.Atoi(threshold)
	switch {
	case threshold == "any":
		k = 1
	case threshold == "all":
		k = len(members)
	case err != nil || strconv.Itoa(k) != threshold || k < 1 || k > len(members):
		return fmt.Errorf("the group %s needs any, all or a number from 1 to %d of its members, not %.20q", name, len(members), threshold)
	}
	var of []quorum
	for _, member := range members {
		q, ok := p.names[member]
		switch {
		case !ok:
			return fmt.Errorf("no line above defines %.40q", member)
		case p.members[member]:
			return fmt.Errorf("%.40q is a member of a group already, and can be one once", member)
		}
		p.members[member] = true
		of = append(of, q)
	}
	return p.define(name, atLeast(k, of))
}

func (p *policyParser) define(name string, q quorum) error {
	if _, ok := p.names[name]; ok || name == "none" {
		return fmt.Errorf("the name %.40q is taken", name)
	}
	p.names[name] = q
	return nil
}

func (p *policyParser) setQuorum(name string) error {
	switch q, ok := p.names[name]; {
	case p.quorum != nil:
		return errors.New("it is the second quorum; a policy has one")
	case name == "none":
		p.quorum = atLeast(0, nil)
	case !ok:
		return fmt.Errorf("no line above defines %.40q", name)
	default:
		p.quorum = q
	}
	return nil
}

// met reports whether the witnesses that has names are enough.
func (p *Policy) met(has func(witness int) bool) bool { return p == nil || p.quorum(has) }

// check returns an error where the policy is for other logs than the one of that name.
func (p *Policy) check(origin string) error {
	if p != nil && len(p.origins) > 0 && !slices.Contains(p.origins, origin) {
		return fmt.Errorf("the witness policy is for the log %s, not for %s", strings.Join(p.origins, ", "), origin)
	}
	return nil
}

// ParseWitness reads a witness that is written as URL#KEY, where KEY is the witness's
// verifier key.
func ParseWitness(s string) (Witness, error) {
	const want = "must be a URL, # and a witness's verifier key, such as https://witness.example.com/#witness.example.com+0123abcd+BA…"
	prefix, key, ok := strings.Cut(s, "#")
	if !ok {
		return Witness{}, errors.New(want)
	}
	u, err := submissionPrefix(prefix)
	if err != nil {
		return Witness{}, fmt.Errorf("%s; its URL %w", want, err)
	}
	v, err := witnessVerifier(key)
	if err != nil {
		return Witness{}, fmt.Errorf("%s; its key is none: %w", want, err)
	}
	return Witness{URL: u, Verifier: v}, nil
}

// submissionPrefix reads a witness's URL.
func submissionPrefix(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("is not that of a witness: https:// or http://, a host, a path")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// algEd25519 begins the keys for ordinary signatures.
const algEd25519 = 1

// witnessVerifier reads a verifier key for cosignatures. Some witnesses give the key for
// ordinary signatures, which the cosignatures are made with all the same.
func witnessVerifier(key string) (note.Verifier, error) {
	v, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		return nil, err
	}
	// It does not hold the key's hash against the key: a slip would go unnoticed.
	if material := keyMaterial(key); len(material) > 0 && material[0] == algEd25519 {
		_, err := note.NewVerifier(key)
		return v, err
	}
	_, rest, _ := strings.Cut(key, "+")
	if hash, _, _ := strings.Cut(rest, "+"); hash != fmt.Sprintf("%08x", v.KeyHash()) {
		return nil, fmt.Errorf("its hash is %08x, not %s", v.KeyHash(), hash)
	}
	return v, nil
}

// keyMaterial is what a verifier key has behind its name and hash: the algorithm's byte and
// the public key.
func keyMaterial(key string) []byte {
	_, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	material, _ := base64.StdEncoding.DecodeString(encoded)
	return material
}
