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

// A Witness vouches that all clients see the same log: it cosigns a checkpoint once it has a proof that the log has only grown.
type Witness struct {
	// URL is the submission prefix of https://c2sp.org/tlog-witness, without a slash at the end; "" for a witness that this process
	// cannot reach.
	URL string
	// Verifier checks the witness's cosignatures.
	Verifier note.Verifier
}

// A Policy says which witnesses get checkpoints, and whose cosignatures a checkpoint needs before it is published. Nil has no
// witnesses and needs none.
type Policy struct {
	witnesses []Witness
	origins   []string // names of the logs that it is for; nil for any
	quorum    quorum
}

// A quorum reports whether the witnesses for which has returns true, by their index in the policy, are enough.
type quorum func(has func(witness int) bool) bool

// singleQuorum returns the quorum of one witness, by its index in the policy.
func singleQuorum(witness int) quorum {
	return func(has func(int) bool) bool { return has(witness) }
}

// atLeast returns the quorum that is met if at least k of the members are met.
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

// Majority returns the policy that more than half of the witnesses must cosign, which is never met without witnesses. Any
// two majorities have a witness in common, so two of them confirm different logs only if that witness lies.
func Majority(witnesses ...Witness) *Policy {
	p := &Policy{witnesses: witnesses}
	var all []quorum
	for i := range witnesses {
		all = append(all, singleQuorum(i))
	}
	p.quorum = atLeast(len(all)/2+1, all)
	return p
}

// The limits of a policy's text. The specification requires at least 32 of each kind.
const (
	maxPolicy = 256 << 10 // bytes
	maxOfKind = 32        // logs, witnesses, groups
)

// ParseMajority returns the policy that more than half of the witnesses, each in the form URL#KEY, must cosign. Two witnesses with the
// same key are an error, because that one would count twice.
func ParseMajority(texts []string) (*Policy, error) {
	p := newPolicyParser()
	var witnesses []Witness
	for _, text := range texts {
		w, err := ParseWitness(text)
		if err == nil {
			_, key, _ := strings.Cut(text, "#")
			err = p.addPublicKey("witness", key)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		witnesses = append(witnesses, w)
	}
	return Majority(witnesses...), nil
}

// ParsePolicy parses a policy in the form of https://c2sp.org/tlog-policy. A policy without a quorum, or whose quorum needs
// witnesses without a URL, is an error.
func ParsePolicy(text []byte) (*Policy, error) {
	if len(text) > maxPolicy {
		return nil, fmt.Errorf("the policy has %d bytes; at most %d are read", len(text), maxPolicy)
	}
	p := newPolicyParser()
	for i, line := range bytes.Split(text, []byte("\n")) {
		if err := p.parseLine(string(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if p.quorum == nil {
		return nil, errors.New("the policy has no quorum line; `quorum none` needs no cosignatures")
	}
	if !p.quorum(func(i int) bool { return p.witnesses[i].URL != "" }) {
		return nil, errors.New("the quorum needs witnesses without a URL, which cannot get checkpoints")
	}
	return &p.Policy, nil
}

// A policyParser parses the lines of a policy.
type policyParser struct {
	Policy
	names   map[string]quorum // quorums of witnesses and groups, by name
	members map[string]bool   // names that are in a group
	keys    map[string]bool   // kinds of lines with public keys
	counts  map[string]int    // numbers of lines, by kind
}

// newPolicyParser returns a parser of an empty policy.
func newPolicyParser() *policyParser {
	return &policyParser{names: map[string]quorum{}, members: map[string]bool{}, keys: map[string]bool{}, counts: map[string]int{}}
}

// parseLine parses a line of a policy and applies it. An empty line or a comment does nothing. More than 32 lines of a kind
// are an error.
func (p *policyParser) parseLine(line string) error {
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
		return p.addLog(fields[0])
	case kind == "witness" && len(fields) == 2:
		return p.addWitness(fields[0], fields[1], "")
	case kind == "witness" && len(fields) == 3:
		return p.addWitness(fields[0], fields[1], fields[2])
	case kind == "group" && len(fields) >= 3:
		return p.addGroup(fields[0], fields[1], fields[2:])
	case kind == "quorum" && len(fields) == 1:
		return p.setQuorum(fields[0])
	}
	return fmt.Errorf("%.40q is none of: log KEY [URL], witness NAME KEY [URL], group NAME K|any|all MEMBER…, quorum NAME|none", line)
}

// addLog adds the log of a verifier key to those that the policy is for. A second line with the same public key is an error.
func (p *policyParser) addLog(key string) error {
	v, err := note.NewVerifier(key)
	if err != nil {
		return fmt.Errorf("the log's key is invalid: %w", err)
	}
	p.origins = append(p.origins, v.Name())
	return p.addPublicKey("log", key)
}

// addWitness adds a witness, and gives the quorum of it alone its name. prefix is the URL to submit checkpoints to, "" if it
// has none. A name or key that was used before is an error.
func (p *policyParser) addWitness(name, key, prefix string) error {
	w := Witness{}
	var err error
	if w.Verifier, err = parseWitnessKey(key); err != nil {
		return fmt.Errorf("the key of the witness %s is invalid: %w", name, err)
	}
	if prefix != "" {
		if w.URL, err = parseSubmissionPrefix(prefix); err != nil {
			return fmt.Errorf("the URL of the witness %s %w", name, err)
		}
	}
	if err := p.addPublicKey("witness", key); err != nil {
		return err
	}
	p.witnesses = append(p.witnesses, w)
	return p.defineQuorum(name, singleQuorum(len(p.witnesses)-1))
}

// addPublicKey records the public key in key, a verifier key that the caller has parsed already, as used by a line of this kind. It
// returns an error if another line of this kind has the same public key, under any name.
func (p *policyParser) addPublicKey(kind, key string) error {
	id := kind + string(keyMaterial(key)[1:])
	if p.keys[id] {
		return fmt.Errorf("another %s has the same key", kind)
	}
	p.keys[id] = true
	return nil
}

// addGroup defines a group of witnesses and groups, which lines before have defined and no other group has. threshold says
// how many of the members must be met: a number, any or all.
func (p *policyParser) addGroup(name, threshold string, members []string) error {
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
	return p.defineQuorum(name, atLeast(k, of))
}

// defineQuorum gives a quorum a name, by which later lines refer to it, and returns an error if the name is taken.
func (p *policyParser) defineQuorum(name string, q quorum) error {
	if _, ok := p.names[name]; ok || name == "none" {
		return fmt.Errorf("the name %.40q is taken", name)
	}
	p.names[name] = q
	return nil
}

// setQuorum sets the policy's quorum to that of the witness or group with this name, or to none. A second call is an error.
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

// isMet reports whether the witnesses for which has returns true, by their index in the policy, are enough. A nil policy is
// always met.
func (p *Policy) isMet(has func(witness int) bool) bool { return p == nil || p.quorum(has) }

// checkLog returns an error if the policy names logs and the one with the name origin is not among them.
func (p *Policy) checkLog(origin string) error {
	if p != nil && len(p.origins) > 0 && !slices.Contains(p.origins, origin) {
		return fmt.Errorf("the witness policy is for the log %s, not for %s", strings.Join(p.origins, ", "), origin)
	}
	return nil
}

// ParseWitness parses a witness in the form URL#KEY, where KEY is its verifier key.
func ParseWitness(s string) (Witness, error) {
	const want = "must be a URL, # and a witness's verifier key, such as https://witness.example.com/#witness.example.com+0123abcd+BA…"
	prefix, key, ok := strings.Cut(s, "#")
	if !ok {
		return Witness{}, errors.New(want)
	}
	u, err := parseSubmissionPrefix(prefix)
	if err != nil {
		return Witness{}, fmt.Errorf("%s; its URL %w", want, err)
	}
	v, err := parseWitnessKey(key)
	if err != nil {
		return Witness{}, fmt.Errorf("%s; its key is invalid: %w", want, err)
	}
	return Witness{URL: u, Verifier: v}, nil
}

// parseSubmissionPrefix parses the URL of a witness and returns it without a slash at the end.
func parseSubmissionPrefix(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("is not that of a witness: https:// or http://, a host, a path")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// algEd25519 is the first byte of keys for ordinary signatures.
const algEd25519 = 1

// parseWitnessKey parses the verifier key of a witness. It may also be the key for ordinary signatures, which is the same
// public key in another form.
func parseWitnessKey(key string) (note.Verifier, error) {
	v, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		return nil, err
	}
	// It does not compare the key's hash with the key, so a typing error would go unnoticed.
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

// keyMaterial returns the part of a verifier key after its name and hash: a byte for the algorithm, and the public key. It
// is empty for a malformed key.
func keyMaterial(key string) []byte {
	_, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	material, _ := base64.StdEncoding.DecodeString(encoded)
	return material
}
