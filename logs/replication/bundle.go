package replication

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A bundle is a tar archive (ustar) whose members are, in this order:
//
//	larder-bundle.json                   a bundleHeader
//	log/checkpoint, log/key, log/keys    as a Larder serves them
//	log/tile/…                           what proves the entries from a log size on, and the entries
//	delta/SHA-256.SHA-256                the deltas of the next content, by its hash and that of the dictionary, in base64url
//	content/SHA-256[.br|.gz]             what these entries name, in their order, each content once
//
// Every header and padding has exactly one form, and the user name in a header is a hash of the member's bytes, so that no
// byte of a bundle can change unnoticed: encodings have bits that do not count.
const (
	headerName    = "larder-bundle.json"
	contentPrefix = "content/"
	deltaPrefix   = "delta/"
	bundleFormat  = 2 // 1 has no deltas
	blockSize     = 512
	bundleEnd     = 2 * blockSize // zeros

	maxHeader      = 1 << 20
	maxMember      = 1 << 30
	maxLogMembers  = 16 << 20
	maxMemberName  = 100
	bundleInterval = time.Second // between two looks at whether the file was replaced
)

// A bundleHeader says what is in a bundle. It is not trusted.
type bundleHeader struct {
	Format int `json:"format"`
	// Since is the log size from which on the bundle has entries, and Size that of its checkpoint.
	Since int64 `json:"since"`
	Size  int64 `json:"size"`
	// Packages are the patterns of the releases whose files are in it; none for all.
	Packages []string `json:"packages,omitempty"`
	// Sum is the SHA-256 of the above and of what precedes the tiles, of which signatures do not cover every byte. It detects
	// accidents, not forgeries.
	Sum kvstore.Hash `json:"sum"`
}

// encode returns the header in JSON, with a new sum over itself and over heads, the bytes of the members at headPaths.
func (h bundleHeader) encode(heads ...[]byte) ([]byte, error) {
	h.Sum = kvstore.Hash{}
	data, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	h.Sum = kvstore.Sum(bytes.Join(append([][]byte{data}, heads...), []byte{0}))
	return json.Marshal(h)
}

// headPaths precede the tiles.
var headPaths = []string{checkpointPath, keyPath, keysPath}

// member is one file in a bundle.
type member struct {
	offset, size int64
	sum          string
}

// read returns the member's bytes from the bundle's file. If they do not have the hash in its tar header, the error is [ErrOther].
func (m member) read(file io.ReaderAt) ([]byte, error) {
	data := make([]byte, m.size)
	if _, err := file.ReadAt(data, m.offset); err != nil {
		return nil, fmt.Errorf("couldn't read the bundle: %w", err)
	}
	if memberSum(data) != m.sum {
		return nil, fmt.Errorf("%w: the bundle was changed between byte %d and byte %d", ErrOther, m.offset, m.offset+m.size)
	}
	return data, nil
}

// memberSum returns the hash of a member's bytes in the form in which its tar header has it: the beginning of the SHA-256 in hexadecimal.
func memberSum(data []byte) string {
	sum := kvstore.Sum(data)
	return hex.EncodeToString(sum[:15])
}

// A contentMember says where a content is. Bundles have millions of them, so it is small: the hash is cut, and verified later.
type contentMember struct {
	hash   [16]byte
	offset int64 // of the tar header
}

// bundleIndex says where the members of a bundle are.
type bundleIndex struct {
	header   bundleHeader
	raw      []byte // the header's bytes
	log      map[string]member
	contents []contentMember // sorted by hash
	deltas   []contentMember // sorted by the hash of the content
	end      int64           // of the last complete member
}

// A Bundle is a bundle file. It may be replaced by another one of the same log, which [Bundle.Await] notices.
type Bundle struct {
	path string

	mu    sync.RWMutex
	file  *os.File
	info  os.FileInfo
	index *bundleIndex
}

// OpenBundle opens the bundle file at path, and checks that it is complete and well-formed: all tar headers and padding, and the sum of its header.
// Its contents are verified as they are read. The caller closes it, unless there is an error; then the result must not be used.
func OpenBundle(path string) (*Bundle, error) {
	b := &Bundle{path: path}
	return b, b.open()
}

// open opens the file at the bundle's path and replaces the one that was open. It returns an error, and keeps the old one, if the new one is
// incomplete or malformed.
func (b *Bundle) open() error {
	file, err := os.Open(b.path)
	if err != nil {
		return fmt.Errorf("couldn't open the bundle: %w", err)
	}
	info, err := file.Stat()
	var index *bundleIndex
	if err == nil {
		index, err = indexBundle(file, info.Size())
	}
	if err == nil && index.end+bundleEnd != info.Size() {
		err = fmt.Errorf("it ends at byte %d, before it is complete", info.Size())
	}
	if err == nil {
		err = index.checkHeader(file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s is not a complete bundle: %w; nothing of it was taken: copy it again, or make it again with `larder bundle`", b.path, err), file.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != nil {
		b.file.Close()
	}
	b.file, b.info, b.index = file, info, index
	return nil
}

// Close closes the bundle's file.
func (b *Bundle) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.file.Close()
}

// Since returns the log size from which on the bundle has entries.
func (b *Bundle) Since() int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.index.header.Since
}

// Packages returns the patterns of the releases whose files are in the bundle; none if all are.
func (b *Bundle) Packages() []string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.index.header.Packages
}

// Has implements partialSource: it reports whether the bundle was made with the files of a release, by its patterns.
func (b *Bundle) Has(pkg, version string) bool {
	only, err := ParseOnly(b.Packages())
	return err == nil && (only == nil || only(pkg, version))
}

// Name implements [Source]. It returns "bundle of " and the name of the log in the checkpoint, the same for all bundles of a log, because the log's
// key is remembered under it. If that cannot be read, it returns "bundle " and the path.
func (b *Bundle) Name() string {
	data, err := b.Get(context.Background(), checkpointPath, maxCheckpoint)
	origin, _, _ := bytes.Cut(data, []byte("\n"))
	if err != nil || len(origin) > 255 {
		return "bundle " + b.path
	}
	return "bundle of " + string(origin)
}

// Get implements [Log]: it reads the member with a path of the log. It returns [fs.ErrNotExist] if none exists, and [ErrOther] if the bytes do not
// have the hash in their tar header; more is not verified. More than limit bytes are another error.
func (b *Bundle) Get(_ context.Context, path string, limit int64) ([]byte, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	m, ok := b.index.log[strings.TrimPrefix(path, "/")]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no %s, only what follows entry %d: %w", b.path, path, b.index.header.Since, fs.ErrNotExist)
	case m.size > limit:
		return nil, fmt.Errorf("%s: %s has %d bytes, and %d are the most", b.path, path, m.size, limit)
	}
	return b.read(m)
}

// Content implements [Contents]: it returns the content in the one encoding that the bundle has, whichever w names. It also reads and checks the
// deltas of the content, because a follower fetches those only after everything else, when a changed bundle would be found too late. It compares
// bytes with the hashes in the tar headers only, and returns [ErrOther] if one differs; without the content, the error is [fs.ErrNotExist].
func (b *Bundle) Content(ctx context.Context, w Wanted) (Found, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var found Found
	for name, m := range b.membersOf(b.index.contents, w.Hash) {
		_, encoding, _ := parseContentName(name)
		data, err := b.readEncoded(name, m, w.Limit)
		if err != nil {
			return Found{}, err
		}
		found.Coded = []kvstore.Coded{{Coding: encoding, Bytes: data}}
		break
	}
	if found.Coded == nil {
		return Found{}, fmt.Errorf("%s: content %s: %w", b.path, w.Hash, fs.ErrNotExist)
	}
	for name, m := range b.membersOf(b.index.deltas, w.Hash) {
		h, dictionary, ok := parseDeltaName(name)
		if !ok || h != w.Hash {
			continue
		}
		// A delta is taken when everything else is, so a changed byte of it must be found before.
		if _, err := b.read(m); err != nil {
			return Found{}, err
		}
		found.Dictionaries = append(found.Dictionaries, dictionary)
	}
	return found, ctx.Err()
}

// Delta implements deltaSource: it returns the delta of the content h against a dictionary, or [fs.ErrNotExist]; size is the content's most bytes.
// Nothing of it is verified but the hash in its tar header: if that differs, the error is [ErrOther].
func (b *Bundle) Delta(ctx context.Context, h, dictionary kvstore.Hash, size int64) ([]byte, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for name, m := range b.membersOf(b.index.deltas, h) {
		if name == deltaName(h, dictionary) {
			return b.readEncoded(name, m, size)
		}
	}
	return nil, fmt.Errorf("%s: delta of content %s: %w", b.path, h, cmp.Or(ctx.Err(), fs.ErrNotExist))
}

// membersOf yields the names and positions of those members, sorted by hash, that have the given content, up to the first whose header is damaged.
// The caller holds b.mu.
func (b *Bundle) membersOf(members []contentMember, h kvstore.Hash) iter.Seq2[string, member] {
	return func(yield func(string, member) bool) {
		cut := [16]byte(h[:])
		at, _ := slices.BinarySearchFunc(members, cut, func(c contentMember, h [16]byte) int { return bytes.Compare(c.hash[:], h[:]) })
		for ; at < len(members) && members[at].hash == cut; at++ {
			name, m, err := readMemberHeader(b.file, members[at].offset)
			if err != nil || !yield(name, m) {
				return
			}
		}
	}
}

// maxOverhead is how many bytes an encoding may be larger than the content.
const maxOverhead = 64 << 10

// readEncoded returns the bytes of a member that encodes a content of at most size bytes. If they are far more, or do not have the hash in the tar
// header, the error is [ErrOther]. The caller holds b.mu.
func (b *Bundle) readEncoded(name string, m member, size int64) ([]byte, error) {
	if m.size > size+maxOverhead {
		return nil, fmt.Errorf("%w: %s: %s of %d bytes", ErrOther, b.path, name, m.size)
	}
	return b.read(m)
}

// read returns the bytes of a member. If they do not have the hash in its tar header, the error is [ErrOther]. Its errors name the bundle. The caller
// holds b.mu.
func (b *Bundle) read(m member) ([]byte, error) {
	data, err := m.read(b.file)
	if err != nil {
		err = fmt.Errorf("%s: %w", b.path, err)
	}
	return data, err
}

// Await implements [Log]: it polls every second until another file is at the path of the bundle, and opens that. While there is none, it waits on. If
// the new file is not a complete bundle, it returns an error, and the old one stays open.
func (b *Bundle) Await(ctx context.Context, _ []byte) error {
	for {
		if err := retry.Sleep(ctx, bundleInterval); err != nil {
			return err
		}
		info, err := os.Stat(b.path)
		b.mu.RLock()
		before := b.info
		b.mu.RUnlock()
		if err != nil || os.SameFile(info, before) && info.Size() == before.Size() && info.ModTime().Equal(before.ModTime()) {
			continue // a medium that was removed, or the same file
		}
		return b.open()
	}
}

// indexBundle reads the headers of all complete members in the first size bytes of a file, and returns where they are. It returns an error, with the
// index so far, if a header or padding is not one that a bundle may have there.
func indexBundle(file io.ReaderAt, size int64) (*bundleIndex, error) {
	index := &bundleIndex{log: make(map[string]member)}
	for index.end+bundleEnd < size {
		name, m, err := readMemberHeader(file, index.end)
		if err != nil {
			return index, err
		}
		next := m.offset + (m.size+blockSize-1)/blockSize*blockSize
		if next > size {
			return index, nil
		}
		if err := checkZeros(file, m.offset+m.size, next); err != nil {
			return index, fmt.Errorf("after %s: %w", name, err)
		}
		if err := index.add(file, name, m); err != nil {
			return index, err
		}
		index.end = next
	}
	if index.end == 0 {
		return index, errors.New("it is empty")
	}
	if index.end+bundleEnd == size {
		if err := checkZeros(file, index.end, size); err != nil {
			return index, fmt.Errorf("at its end: %w", err)
		}
	}
	for _, members := range [][]contentMember{index.contents, index.deltas} {
		slices.SortFunc(members, func(a, b contentMember) int {
			return cmp.Or(bytes.Compare(a.hash[:], b.hash[:]), cmp.Compare(a.offset, b.offset))
		})
	}
	return index, nil
}

// add adds a member to the index. It returns an error if a bundle may not have such a member there. The first one is the header, which it reads.
func (x *bundleIndex) add(file io.ReaderAt, name string, m member) error {
	if (x.end == 0) != (name == headerName) {
		return fmt.Errorf("%q is where it must not be: a bundle begins with %s", name, headerName)
	}
	if name == headerName {
		if m.size > maxHeader {
			return fmt.Errorf("%s has %d bytes", name, m.size)
		}
		data, err := m.read(file)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &x.header); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		x.raw = data
		if x.header.Format < 1 || x.header.Format > bundleFormat {
			return fmt.Errorf("its format is %d, and this larder knows those up to %d", x.header.Format, bundleFormat)
		}
		_, err = ParseOnly(x.header.Packages)
		return err
	}
	if h, _, ok := parseContentName(name); ok {
		x.contents = append(x.contents, contentMember{[16]byte(h[:]), m.offset - blockSize})
		return nil
	}
	if h, _, ok := parseDeltaName(name); ok {
		x.deltas = append(x.deltas, contentMember{[16]byte(h[:]), m.offset - blockSize})
		return nil
	}
	if !strings.HasPrefix(name, "log/") || len(x.log) >= maxLogMembers {
		return fmt.Errorf("%q cannot be in a bundle", name)
	}
	x.log[name] = m
	return nil
}

// checkHeader reads the members at headPaths, and returns an error unless the sum in the bundle's header is that over the header and these members.
// One that is missing counts as empty.
func (x *bundleIndex) checkHeader(file io.ReaderAt) error {
	var heads [][]byte
	for _, path := range headPaths {
		var data []byte
		if m, ok := x.log[path[1:]]; ok {
			var err error
			if data, err = m.read(file); err != nil {
				return err
			}
		}
		heads = append(heads, data)
	}
	want, err := x.header.encode(heads...)
	if err == nil && !bytes.Equal(want, x.raw) {
		err = fmt.Errorf("%s does not belong to its checkpoint and keys", headerName)
	}
	return err
}

// contentSuffixes end the names of contents, by their encodings.
var contentSuffixes = map[coding.Coding]string{coding.Identity: "", coding.Brotli: ".br", coding.Gzip: ".gz"}

// contentName returns the name of the member that has the content h in the encoding c.
func contentName(h kvstore.Hash, c coding.Coding) string {
	return contentPrefix + h.String() + contentSuffixes[c]
}

// parseContentName returns the content and the encoding that a member's name says. ok is false for the name of another kind of member.
func parseContentName(name string) (h kvstore.Hash, c coding.Coding, ok bool) {
	for c := range contentSuffixes {
		hash := strings.TrimSuffix(strings.TrimPrefix(name, contentPrefix), contentSuffixes[c])
		if h, err := kvstore.ParseHash(hash); err == nil && name == contentName(h, c) {
			return h, c, true
		}
	}
	return h, c, false
}

// deltaName returns the name of the member that has the delta of the content h against a dictionary.
func deltaName(h, dictionary kvstore.Hash) string {
	return deltaPrefix + base64.RawURLEncoding.EncodeToString(h[:]) + "." + base64.RawURLEncoding.EncodeToString(dictionary[:])
}

// parseDeltaName returns the content and the dictionary that a member's name says. ok is false for the name of another kind of member.
func parseDeltaName(name string) (h, dictionary kvstore.Hash, ok bool) {
	of, against, _ := strings.Cut(strings.TrimPrefix(name, deltaPrefix), ".")
	content, _ := base64.RawURLEncoding.DecodeString(of)
	sum, _ := base64.RawURLEncoding.DecodeString(against)
	copy(h[:], content)
	copy(dictionary[:], sum)
	return h, dictionary, name == deltaName(h, dictionary)
}

// readMemberHeader reads the tar header at an offset, and returns the member's name, position and hash. A header in another form than [memberHeader]
// writes is an error.
func readMemberHeader(file io.ReaderAt, offset int64) (name string, m member, err error) {
	block := make([]byte, blockSize)
	if _, err := file.ReadAt(block, offset); err != nil {
		return "", m, err
	}
	h, err := tar.NewReader(bytes.NewReader(block)).Next()
	if err != nil {
		return "", m, fmt.Errorf("at byte %d: %w", offset, err)
	}
	want, err := memberHeader(h.Name, h.Size, h.Uname)
	if err == nil && !bytes.Equal(block, want) {
		err = errors.New("it is not as it was written")
	}
	if err != nil {
		return "", m, fmt.Errorf("the header of %q at byte %d: %w", h.Name, offset, err)
	}
	return h.Name, member{offset + blockSize, h.Size, h.Uname}, nil
}

// memberHeader returns the only tar header that a bundle's member with this name, size in bytes and hash (see memberSum) may have. It returns an
// error if the name or size exceeds its limit.
func memberHeader(name string, size int64, sum string) ([]byte, error) {
	if len(name) > maxMemberName || size < 0 || size > maxMember {
		return nil, fmt.Errorf("a member %.120q of %d bytes cannot be in a bundle", name, size)
	}
	var block bytes.Buffer
	err := tar.NewWriter(&block).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Uname: sum, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
	return block.Bytes(), err
}

// checkZeros returns an error unless the bytes of the file between two offsets are all zero.
func checkZeros(file io.ReaderAt, from, to int64) error {
	data := make([]byte, to-from)
	if _, err := file.ReadAt(data, from); err != nil {
		return err
	}
	if len(bytes.Trim(data, "\x00")) > 0 {
		return fmt.Errorf("what has to be zero, from byte %d to %d, is not", from, to)
	}
	return nil
}
