package git

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages/archive"
)

const tagPrefix = "refs/tags/"

// Tags requests the tags of the repository at target, an address in any of git's forms. validator is that of an earlier Listing,
// or ""; if the tags are the same, the listing has none. Tags whose names have over 1024 bytes are left out.
//
// Errors are package fetch's, among them [fetch.ErrNotFound], and a *[RefusedError].
func (c *Client) Tags(ctx context.Context, target, validator string) (_ *Listing, err error) {
	defer func() { err = nameRepository(target, err) }()
	s, err := c.openTarget(ctx, target)
	if err != nil {
		return nil, err
	}
	refs, err := c.listReferences(ctx, s, tagPrefix)
	if err != nil {
		return nil, err
	}
	commits := make(map[string]string)
	for _, ref := range refs {
		if name := strings.TrimPrefix(ref.name, tagPrefix); name != "" && len(name) <= maxTagName {
			commits[name] = ref.commitHash()
		}
	}
	listing := &Listing{Validator: tagsValidator(commits), Moved: s.moved}
	if listing.Unchanged = listing.Validator == validator; listing.Unchanged {
		return listing, nil
	}
	listing.Tags, err = tagsByVersion(commits)
	return listing, err
}

// commitHash returns the hash of the object that a reference names, normally a commit: the target of an annotated tag, else the
// reference's own hash.
func (r reference) commitHash() string {
	if r.peeled != plumbing.ZeroHash {
		return r.peeled.String()
	}
	return r.hash.String()
}

// openTarget starts a session with the repository at target, an address as package JSONs have it. One at GitHub has one URL,
// whatever form target has, and may be on the operator's GitHub Enterprise Server.
func (c *Client) openTarget(ctx context.Context, target string) (*session, error) {
	at, err := parseAddress(target)
	if err != nil {
		return nil, err
	}
	var how fetch.TransportOptions
	if c.o.GitHub != nil && c.o.GitHub.hosts(at) {
		if at, err = c.o.GitHub.repositoryAddress(at); err != nil {
			return nil, err
		}
		how.Trusted = c.o.GitHub.isTrusted
	}
	return c.open(ctx, at, how)
}

// tagsValidator returns a hash of all tags, given their commits by the names of tags. It changes if a tag is added, moved or
// removed.
func tagsValidator(commits map[string]string) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(commits)) {
		fmt.Fprintf(sum, "%s %s\n", commits[name], name)
	}
	return "tags:" + hex.EncodeToString(sum.Sum(nil))
}

// A Selection chooses files of a release by name. The archive has the names of all files, and no contents.
type Selection func(ctx context.Context, names archive.Source) (wanted func(name string) bool, err error)

// Release fetches the files of a tag that [Client.Tags] returned into dst, which is emptied first, each verified by its hash in
// the commit. With a selection, the contents of other files are not fetched where the host can leave them out; the archive then
// has those files as left out. It also leaves out Git LFS pointers. It returns an error if the tag names another commit by now.
// An error about dst is a *[fetch.LocalError]; others are those of Tags.
func (c *Client) Release(ctx context.Context, target string, tag Tag, selection Selection, dst *os.File) (*Release, error) {
	r, err := c.fetchTag(ctx, target, tag, selection, dst)
	if err != nil {
		return nil, nameRepository(target, fmt.Errorf("tag %.100q: %w", tag.Name, err))
	}
	r.Archive = r.Archive.LeaveOut(maxPointer, describePointer)
	if tag.Note != "" {
		r.Notes = append([]string{tag.Note}, r.Notes...)
	}
	return r, nil
}

// fetchTag is Release without notes about the tag, and without leaving out Git LFS pointers. It returns an error if the tag names
// another commit by now than tag.Commit.
func (c *Client) fetchTag(ctx context.Context, target string, tag Tag, selection Selection, dst *os.File) (*Release, error) {
	if err := fetch.Truncate(dst); err != nil {
		return nil, err
	}
	s, err := c.openTarget(ctx, target)
	if err != nil {
		return nil, err
	}
	refs, err := c.listReferences(ctx, s, tagPrefix+tag.Name)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(refs, func(ref reference) bool { return ref.name == tagPrefix+tag.Name })
	now := ""
	if i >= 0 {
		now = refs[i].commitHash()
	}
	if now != tag.Commit {
		return nil, fmt.Errorf("it was at commit %s and is at %s now", tag.Commit, cmp.Or(now, "none"))
	}
	return c.fetchCommit(ctx, s, refs[i].hash, tag.Commit, selection, dst)
}

// maxSelected is how many files are requested by their hashes; of a commit with more selected files, all are fetched.
const maxSelected = 10_000

// fetchCommit fetches the files of one commit, without earlier commits, and writes them to dst as an archive. want is the object
// that the repository lists: the commit or a tag of it; it must lead to commit, in hexadecimal digits. A selection, nil for all
// files, limits the files whose contents are fetched, if the host supports that. Then fetchCommit fetches two packs, and leaves
// the slot of the first one before it waits for that of the second, because there is only one slot.
func (c *Client) fetchCommit(ctx context.Context, s *session, want plumbing.Hash, commit string, selection Selection, dst *os.File) (*Release, error) {
	partial := selection != nil && s.supportsPartial()
	first := commitWithFiles
	if partial {
		first = commitWithFolders
	}
	p, err := c.fetchPack(ctx, s, first, []plumbing.Hash{want}, folderOf(dst))
	if err != nil {
		return nil, err
	}
	defer p.close()
	found, err := readCommit(p.Get, want)
	if err != nil {
		return nil, err
	}
	if found.Hash.String() != commit {
		return nil, refusef("it names the commit %s, and not %s as the repository had said", found.Hash, commit)
	}
	if !partial {
		return exportCommit(ctx, p.Get, found, nil, dst)
	}
	wanted, hashes, err := selectFiles(ctx, p.Get, found, selection)
	if err != nil {
		return nil, err
	}
	if len(hashes) == 0 {
		return exportCommit(ctx, p.Get, found, wanted, dst)
	}
	second := singleFiles
	if len(hashes) > maxSelected {
		second, hashes, wanted = commitWithFiles, []plumbing.Hash{want}, nil
	}
	p.leave()
	files, err := c.fetchPack(ctx, s, second, hashes, folderOf(dst))
	if err != nil {
		return nil, err
	}
	defer files.close()
	get := func(h plumbing.Hash) (plumbing.EncodedObject, error) {
		if o, err := p.Get(h); err == nil {
			return o, nil
		}
		return files.Get(h)
	}
	return exportCommit(ctx, get, found, wanted, dst)
}

// selectFiles applies a selection to the names of files in the commit c, whose folders get returns. It returns the function by
// which the selection wants a file, and the hashes of the wanted files, each once.
func selectFiles(ctx context.Context, get objectReader, c *object.Commit, selection Selection) (wanted func(string) bool, hashes []plumbing.Hash, err error) {
	var entries []archive.Entry
	var all []plumbing.Hash
	w := &treeWalk{ctx: ctx, get: get, visit: func(name string, entry object.TreeEntry) error {
		skipped := ""
		switch entry.Mode {
		case filemode.Submodule:
			return nil
		case filemode.Symlink:
			skipped = "symbolic link"
		}
		entries, all = append(entries, archive.Entry{Name: name, Skipped: skipped}), append(all, entry.Hash)
		return nil
	}}
	if err := w.walkFolder(c.TreeHash, "", 0); err != nil {
		return nil, nil, err
	}
	if wanted, err = selection(ctx, archive.List(entries, nil)); err != nil {
		return nil, nil, err
	}
	for i, e := range entries {
		if e.Skipped == "" && wanted(e.Name) {
			hashes = append(hashes, all[i])
		}
	}
	slices.SortFunc(hashes, func(a, b plumbing.Hash) int { return strings.Compare(string(a[:]), string(b[:])) })
	return wanted, slices.Compact(hashes), nil
}

// exportCommit writes the files of the commit c, whose objects get returns, to dst, and returns them as a release. Of files for
// which wanted returns false it writes only the names; a nil wanted wants all.
func exportCommit(ctx context.Context, get objectReader, c *object.Commit, wanted func(string) bool, dst *os.File) (*Release, error) {
	notes, err := exportTree(ctx, get, c.TreeHash, wanted, dst)
	if err != nil {
		return nil, err
	}
	source, err := archive.OpenDownload(dst)
	if err != nil {
		return nil, refusef("the commit has no files")
	}
	return &Release{Archive: source, Tree: c.TreeHash.String(), Date: plausibleTime(c.Committer.When.Unix()), Notes: notes}, nil
}
