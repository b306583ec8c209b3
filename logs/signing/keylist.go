package signing

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs"
)

// KeyListFile is the file of the key folder that has the list of the log's keys, signed by an offline root key. A Larder serves it.
const KeyListFile = "key-list"

// MaxKeyList limits a signed list, in bytes.
const MaxKeyList = 64 << 10

const (
	keyListHeader = "larder-keys/v1"
	maxListed     = 100
)

// A KeyList says which keys may sign a log. An offline root key signs the list, so it takes precedence over changes of keys that a
// former key has signed.
type KeyList struct {
	Origin  string // of the log
	Version int64  // a list replaces those with smaller versions
	Expires time.Time
	Keys    []ListedKey
}

// A ListedKey is a key of a [KeyList].
type ListedKey struct {
	Key string // a verifier key
	// End is the last tree that the key may sign, nil if it may sign any.
	End *logs.Checkpoint
}

// Valid returns the keys that may sign trees of any size, in the order of the list; nil if all have ended. It ignores
// Expires.
func (l *KeyList) Valid() (keys []string) {
	for _, k := range l.Keys {
		if k.End == nil {
			keys = append(keys, k.Key)
		}
	}
	return keys
}

// All returns all keys of the list in its order, also those that have ended.
func (l *KeyList) All() (keys []string) {
	for _, k := range l.Keys {
		keys = append(keys, k.Key)
	}
	return keys
}

// Equal reports whether two lists have the same content. Their notes may differ in signatures of other keys.
func (l *KeyList) Equal(other *KeyList) bool { return l.text() == other.text() }

// Sign returns the list as a note (https://c2sp.org/signed-note) that is signed with a root key. An invalid list is an
// error.
func (l *KeyList) Sign(root note.Signer) ([]byte, error) {
	text := l.text()
	if _, err := parseKeyList(text); err != nil {
		return nil, fmt.Errorf("signing: couldn't sign the list of keys: %w", err)
	}
	return note.Sign(&note.Note{Text: text}, root)
}

// OpenKeyList verifies a signed list with root, the verifier key of the root key, and parses it. A list that has expired is
// no error. One over [MaxKeyList] is.
func OpenKeyList(signed []byte, root string) (*KeyList, error) {
	v, err := note.NewVerifier(root)
	if err != nil {
		return nil, fmt.Errorf("the root key is not a verifier key: %w", err)
	}
	if len(signed) > MaxKeyList {
		return nil, fmt.Errorf("the list of keys has over %d bytes", MaxKeyList)
	}
	n, err := note.Open(signed, note.VerifierList(v))
	if err != nil {
		return nil, fmt.Errorf("the list of keys is not signed with the root key %s: %w", root, err)
	}
	l, err := parseKeyList(n.Text)
	if err != nil {
		return nil, fmt.Errorf("the root key has signed what is not a list of keys: %w", err)
	}
	return l, nil
}

// ReadKeyList reads the signed list from a key folder, without verifying it: a Larder does not know the root key. Without a
// list the error is [fs.ErrNotExist].
func ReadKeyList(dir string) ([]byte, error) {
	path := filepath.Join(dir, KeyListFile)
	data, err := disk.ReadAtMost(path, MaxKeyList)
	if err == nil && len(data) > MaxKeyList {
		err = fmt.Errorf("%s has over %d bytes", path, MaxKeyList)
	}
	return data, err
}

// text returns the text of the list as a note has it.
func (l *KeyList) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\nversion %d\nexpires %s\n", keyListHeader, l.Origin, l.Version, l.Expires.UTC().Format(time.RFC3339))
	for _, k := range l.Keys {
		fmt.Fprintf(&b, "key %s", k.Key)
		if k.End != nil {
			fmt.Fprintf(&b, " ends %d %s", k.End.Size, base64.StdEncoding.EncodeToString(k.End.Root[:]))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// parseKeyList parses a list, in the only form that [KeyList.text] returns.
func parseKeyList(text string) (*KeyList, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) < 5 || len(lines) > 4+maxListed || lines[0] != keyListHeader {
		return nil, fmt.Errorf("it must have the line %s, the log's name, a version, an expiry and 1 to %d keys", keyListHeader, maxListed)
	}
	l := &KeyList{Origin: lines[1]}
	var err error
	if l.Version, err = strconv.ParseInt(strings.TrimPrefix(lines[2], "version "), 10, 64); err != nil || l.Version < 1 {
		return nil, fmt.Errorf("%.100q is not a version over 0", lines[2])
	}
	if l.Expires, err = time.Parse(time.RFC3339, strings.TrimPrefix(lines[3], "expires ")); err != nil {
		return nil, fmt.Errorf("%.100q is not an expiry: %w", lines[3], err)
	}
	seen := make(map[string]bool)
	for _, line := range lines[4:] {
		k, err := parseListedKey(line, l.Origin)
		if err != nil {
			return nil, fmt.Errorf("%.300q is not a key of the log: %w", line, err)
		}
		if seen[k.Key] {
			return nil, fmt.Errorf("the key %s is listed twice", k.Key)
		}
		seen[k.Key] = true
		l.Keys = append(l.Keys, k)
	}
	if l.Valid() == nil {
		return nil, errors.New("all of its keys have ended")
	}
	if l.text() != text {
		return nil, errors.New("it is not written as Larder writes it")
	}
	return l, nil
}

// parseListedKey parses a line of a list, with a key of the log with the name origin.
func parseListedKey(line, origin string) (k ListedKey, err error) {
	fields := strings.Split(line, " ")
	if len(fields) != 2 && len(fields) != 5 || fields[0] != "key" {
		return k, errors.New("it must be `key KEY` or `key KEY ends SIZE ROOT`")
	}
	v, err := note.NewVerifier(fields[1])
	if err != nil {
		return k, err
	}
	if v.Name() != origin {
		return k, fmt.Errorf("it is that of the log %q, not of %q", v.Name(), origin)
	}
	if k.Key = fields[1]; len(fields) == 2 {
		return k, nil
	}
	size, err := strconv.ParseInt(fields[3], 10, 64)
	root, rootErr := base64.StdEncoding.DecodeString(fields[4])
	if fields[2] != "ends" || errors.Join(err, rootErr) != nil || size < 0 || size > logs.MaxSize || len(root) != tlog.HashSize {
		return k, errors.New("its end must be the size and the root of a tree")
	}
	k.End = &logs.Checkpoint{Size: size, Root: tlog.Hash(root)}
	return k, nil
}

// EndKey sets the last tree that a key of the list may sign to that of the signed checkpoint last, which must be signed with
// any key of the list. It changes only l in memory: the list must be signed again after that. A key that the list does not
// have is an error.
func (l *KeyList) EndKey(key string, last []byte) error {
	i := slices.Index(l.All(), key)
	if i < 0 {
		return fmt.Errorf("the list does not have the key %s", key)
	}
	signed, err := OpenWithAny(last, l.All(), nil)
	if err != nil {
		return fmt.Errorf("the checkpoint is not signed with a key of the list: %w", err)
	}
	l.Keys[i].End = &signed.Checkpoint
	return nil
}
