// Package audit compares releases of a log with what their upstream has: the archive from the registry, or the files of a tag's
// commit, file by file. A [Follower] does that with every release of another Larder's log, and signs what it found.
//
// It trusts nothing that the log says: the caller of an [Auditor] has proven that the log says so, and this package reports
// whether upstream says so too. Files that were made here are made again, if the log says with what and this program has the
// same; otherwise it reports why they cannot be checked.
//
// The package must not know stores, nor how its results are displayed.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// Options are the dependencies of an [Auditor]. All are required.
type Options struct {
	Npm        *npm.Client
	Git        *git.Client
	Minifiers  *worker.Pool
	Provenance *npm.AttestationVerifier
	// TempDir is a folder for archives; each is removed when it was read.
	TempDir string
}

// An Auditor implements [verify.Upstream].
type Auditor struct{ o Options }

// New returns an Auditor with these options.
func New(o Options) *Auditor { return &Auditor{o} }

// Compare compares a release with its upstream. It implements [verify.Upstream]. The outcome is [verify.Differs] if a file or a
// signature is not upstream's, [verify.Unproven] if the release could not be compared, else [verify.Proven]. Problem says why it is
// not proven.
func (a *Auditor) Compare(ctx context.Context, r verify.Claim) verify.Comparison {
	c := &comparison{Auditor: a, claim: r, at: make(map[string]string), unchecked: make(map[string]string)}
	err := c.run(ctx)
	c.found.At = c.upstreamPath
	c.found.Outcome, c.found.Err = verify.Proven, err
	if err != nil {
		c.found.Outcome, c.found.Problem = verify.OutcomeOf(err), err.Error()
	}
	return c.found
}

// A comparison is of one release.
type comparison struct {
	*Auditor
	claim     verify.Claim
	found     verify.Comparison
	at        map[string]string // where upstream has a file, by its published path
	unchecked map[string]string // why a file could not be checked
	lookalike map[string]string // a file of the archive with the path and other bytes
	own       []byte            // the archive's package.json
}

// run fetches upstream's archive or commit into a temporary file and compares the release with it. A nil error means that everything
// that could be compared is upstream's. A difference is a [verify.Difference]; any other error says why the release could not be
// compared, such as [ErrNoUpstream].
func (c *comparison) run(ctx context.Context) error {
	file, err := os.CreateTemp(c.o.TempDir, "larder-upstream-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var src archive.Source
	switch source := c.claim.Manifest.Source; source.Type {
	case "npm":
		src, err = c.fetchNpm(ctx, source, file)
	case "git":
		src, err = c.fetchGit(ctx, source, file)
	default:
		err = fmt.Errorf("%w: its source is %s, %s", ErrNoUpstream, text.Short(source.Type, 40), text.Short(source.Name, 200))
	}
	if err != nil {
		return err
	}
	err = c.compareFiles(ctx, src)
	source := c.claim.Manifest.Source
	fromArchive := source.Tree == "" && source.Type == "git" && c.o.Git.AtGitHub(source.Name)
	if fromArchive && errors.As(err, new(*verify.Difference)) {
		return fmt.Errorf("the release was published by version 0.1 from the host's archive of the commit, in which files may be missing "+
			"or changed, so it cannot be compared with the commit: %v", err) //nolint:errorlint // not a difference
	}
	if err != nil {
		return err
	}
	return c.compareProvenance(ctx)
}

// fetchNpm downloads the archive from the registry into dst. If the registry's integrity or signature is not the one in the
// log, the error is a [verify.Difference]; but if the registry has replaced an archive that it had signed as the log has it,
// the release cannot be compared, which is another error.
func (c *comparison) fetchNpm(ctx context.Context, source logs.Source, dst *os.File) (archive.Source, error) {
	none := archive.Source{}
	c.found.Where = fmt.Sprintf("npm's %s %s", source.Name, c.claim.Entry.Version)
	c.found.Registry = c.o.Npm.Registry(source.Name)
	if source.Name != c.claim.Entry.Package {
		c.addNote("what is called %s here is npm's %s", text.Short(c.claim.Entry.Package, 200), text.Short(source.Name, 200))
	}
	packument, _, err := c.o.Npm.Packument(ctx, source.Name, npm.Validators{})
	if err != nil {
		return none, asSignatureDifference(err)
	}
	v, ok := packument.Versions[c.claim.Entry.Version]
	if !ok {
		return none, fmt.Errorf("%s has no version %s, or has it no more", c.found.Registry, c.claim.Entry.Version)
	}
	same, known := v.SameTarball(source.Integrity)
	switch {
	case !known && v.Err != nil:
		return none, v.Err
	case !known:
		return none, fmt.Errorf("the log has the integrity %s, and the registry states %s, which cannot be compared", shortIntegrity(source.Integrity), shortIntegrity(v.Hash()))
	}
	c.found.Integrity = v.Hash()
	if err := c.compareSignature(ctx, v, source, same); err != nil {
		return none, err
	}
	opened, _, err := c.o.Npm.Release(ctx, v, dst)
	return opened, asSignatureDifference(err)
}

// compareSignature checks the registry's signature in the log, and then the one that the registry states now for the version v. same
// says whether the registry's integrity is the one in the log. A wrong signature is a [verify.Difference]. If the integrity differs,
// the error is a [verify.Difference], too, unless the signature in the log is valid and by a key that the registry publishes: then
// the files cannot be compared. A release that is not signed is not an error; a note says so. compareSignature records the id of the
// key that signed.
func (c *comparison) compareSignature(ctx context.Context, v npm.Version, source logs.Source, same bool) error {
	kept := c.claim.Entry.Signature
	ours := "" // why the kept signature does not count
	switch {
	case !kept.HasText() && c.claim.Manifest.Source.Signature.Outcome == logs.SignatureVerified:
		ours = "the entry does not keep the registry's signature: it is older than that"
	case !kept.HasText():
		ours = "at publication the registry had no signature that could be verified"
	case kept.Text != source.Name+"@"+c.claim.Entry.Version+":"+source.Integrity:
		return differs("the log keeps a signature of %q, and not of this release and its integrity", text.Short(kept.Text, 300))
	default:
		if err := kept.Check(); err != nil {
			return differs("the signature that the log keeps: %v", err)
		}
		switch published, _, err := c.o.Npm.Key(ctx, source.Name, kept.Key); {
		case err != nil:
			return err
		case published.Text == "" || published.Text != kept.PublicKey:
			ours = fmt.Sprintf("the log keeps a signature by a key that the registry does not publish: %s", text.Short(kept.Key, 100))
		}
	}
	if !same && ours == "" {
		return fmt.Errorf("the registry has another archive now (%s) than the one that it had signed, and that the log has (%s), so the files cannot be compared", shortIntegrity(v.Hash()), shortIntegrity(source.Integrity))
	}
	if !same {
		return differs("the log has the integrity %s, and the registry states %s; %s", shortIntegrity(source.Integrity), shortIntegrity(v.Hash()), ours)
	}
	signed, err := c.o.Npm.Verify(ctx, v)
	switch {
	case err != nil:
		return asSignatureDifference(err)
	case !signed.Keys:
		c.addNote("the registry publishes no keys, so that nothing is known of signatures")
	case signed.KeyID == "":
		c.addNote("the registry has not signed this release")
	default:
		c.found.Key = signed.KeyID
	}
	if ours != "" {
		c.addNote("%s", ours)
	}
	return nil
}

// fetchGit downloads the files of the commit that the tag names into dst, and records the commit. If that is not the commit in the
// log, the error is a [verify.Difference]. A missing tag is another error.
func (c *comparison) fetchGit(ctx context.Context, source logs.Source, dst *os.File) (archive.Source, error) {
	c.found.Where = fmt.Sprintf("%s at the tag %s", source.Name, source.Tag)
	listed, err := c.o.Git.Tags(ctx, source.Name, "")
	if err != nil {
		return archive.Source{}, err
	}
	i := slices.IndexFunc(listed.Tags, func(t git.Tag) bool { return t.Name == source.Tag })
	if i < 0 {
		return archive.Source{}, fmt.Errorf("the repository has no tag %s, or has it no more", text.Short(source.Tag, 200))
	}
	tag := listed.Tags[i]
	if tag.Commit != source.Commit {
		return archive.Source{}, differs("the tag %s names the commit %s, and the log says %s", text.Short(tag.Name, 200), tag.Commit, source.Commit)
	}
	c.found.Commit = tag.Commit
	release, err := c.o.Git.Release(ctx, source.Name, tag, nil, dst)
	if err != nil {
		return archive.Source{}, err
	}
	return release.Archive, nil
}

// maxRemakes is how many files are minified again at the same time.
const maxRemakes = 2

// An index says which files of a manifest may be in an archive, by their places in the manifest.
type index struct {
	files  []logs.File
	byHash map[kvstore.Hash][]int
	byBase map[string][]int // to say what is in the place of a file that is not there
	from   map[string][]int // files that were made, by the path of what they were made from
}

// newIndex returns the index of a manifest's files: minified ones by what they were made from, without built modules, and others by
// hash and name.
func newIndex(files []logs.File) *index {
	x := &index{files, make(map[kvstore.Hash][]int), make(map[string][]int), make(map[string][]int)}
	for i, f := range files {
		switch f.Origin {
		case logs.Minified:
			x.from[f.From] = append(x.from[f.From], i)
			continue
		case logs.Built:
			continue
		}
		x.byHash[f.SHA256] = append(x.byHash[f.SHA256], i)
		x.byBase[path.Base(f.Path)] = append(x.byBase[path.Base(f.Path)], i)
	}
	return x
}

// needsBytes reports whether comparing an entry of the archive needs its bytes, and not only their hash: files may have been
// minified from it, or it is the package.json. An entry that is too large to be minified never does.
func (x *index) needsBytes(e archive.Entry) bool {
	minified := func(i int) bool { return len(x.from[x.files[i].Path]) > 0 }
	return e.Size <= packages.MaxMinify && (e.Name == "package.json" || slices.ContainsFunc(x.byBase[path.Base(e.Name)], minified))
}

// compareFiles reads the archive, looks for every file of the manifest in it, minifies again what was minified, and builds modules
// again. It counts the results in c.found. The error is the first [verify.Difference], or says why the comparison could not be made,
// such as an archive that cannot be read.
func (c *comparison) compareFiles(ctx context.Context, src archive.Source) error {
	x := newIndex(c.claim.Manifest.Files)
	c.lookalike = make(map[string]string)
	remake := c.checkMaker()
	results := make([]error, len(x.files)) // of making again
	made := make([]bool, len(x.files))
	var built moduleCheck
	group, making := errgroup.WithContext(ctx)
	group.SetLimit(maxRemakes)
	makeAgain := func(targets []int, data []byte) {
		for _, target := range targets {
			if made[target] {
				continue
			}
			made[target] = true
			group.Go(func() error {
				results[target] = c.remake(making, x.files[target], data)
				return making.Err()
			})
		}
	}
	err := archive.Walk(ctx, src, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		if e.Skipped != "" {
			return nil
		}
		hash, data, err := hashEntry(r, x.needsBytes(e))
		if err != nil {
			return err
		}
		if e.Name == "package.json" {
			c.own = data
		}
		for _, at := range c.matchEntry(x, e.Name, hash) {
			if remake == "" && data != nil {
				makeAgain(x.from[at], data)
			}
		}
		return nil
	})
	if waited := group.Wait(); err == nil {
		err = waited
	}
	for i, f := range x.files {
		if err != nil || f.Origin != logs.Built {
			continue
		}
		if built.built == nil && built.cannot == "" {
			built, err = c.compareModules(ctx, src)
		}
		made[i], results[i] = true, built.compareFile(f)
	}
	if errors.As(err, new(*archive.RefusedError)) {
		return differs("upstream's archive is none that is published: %v", err)
	}
	if err != nil {
		return err
	}
	return c.summarize(remake, made, results)
}

// matchEntry records which files of the manifest an entry of the archive, with this name and hash, has the bytes of, and
// which ones it resembles by its path only. It returns the published paths of the files for which it is the first entry with
// their bytes.
func (c *comparison) matchEntry(x *index, name string, hash kvstore.Hash) (paths []string) {
	for _, i := range x.byHash[hash] {
		if at := x.files[i].Path; mayBePublishedAs(name, at) && c.at[at] == "" {
			c.at[at] = name
			paths = append(paths, at)
		}
	}
	for _, i := range x.byBase[path.Base(name)] {
		f := x.files[i]
		if other := c.lookalike[f.Path]; mayBePublishedAs(name, f.Path) && hash != f.SHA256 && (other == "" || name < other) {
			c.lookalike[f.Path] = name
		}
	}
	return paths
}

// summarize counts in c.found the files that are upstream's, that were made again with the same result, and that could not be checked,
// and returns the first difference in the manifest's order, nil if it found none. It does not count differing files. A file that
// could not be checked is not a difference: c.unchecked gets the reason, and a note names the first one. cannotRemake says why
// minified files cannot be made again, "" if they can; made and results say which were and with which result, by index.
func (c *comparison) summarize(cannotRemake string, made []bool, results []error) error {
	var wrong error
	problem := func(err error) { wrong = cmp.Or(wrong, err) }
	for i, f := range c.claim.Manifest.Files {
		isMade := f.Origin == logs.Minified || f.Origin == logs.Built
		switch {
		case !isMade && c.at[f.Path] != "":
			c.found.Files++
		case f.Origin == logs.Taken:
			c.unchecked[f.Path] = "another origin had it, which may have made it"
		case !isMade && c.lookalike[f.Path] != "":
			problem(differs("%s has other bytes at %s than the log says of %s", c.found.Where, text.Short(c.lookalike[f.Path], 300), text.Short(f.Path, 300)))
		case !isMade:
			problem(differs("%s has no file with the bytes of %s at a path like that", c.found.Where, text.Short(f.Path, 300)))
		case f.Origin == logs.Minified && c.at[f.From] == "":
			problem(differs("%s is said to be made from %s, which upstream does not have", text.Short(f.Path, 300), text.Short(f.From, 300)))
		case f.Origin == logs.Minified && cannotRemake != "":
			c.unchecked[f.Path] = cannotRemake
		case !made[i]:
			c.unchecked[f.Path] = "what it was made from is too large to be minified"
		case errors.As(results[i], new(*verify.Difference)):
			problem(results[i])
		case results[i] != nil:
			c.unchecked[f.Path] = results[i].Error()
		default:
			c.found.Made++
		}
	}
	c.found.Unchecked = len(c.unchecked)
	if len(c.unchecked) > 0 {
		for _, f := range c.claim.Manifest.Files { // the first, to say why
			if why := c.unchecked[f.Path]; why != "" {
				c.addNote("%s not checked, such as %s: %s", text.Count(len(c.unchecked), "file was", "files were"), text.Short(f.Path, 200), why)
				break
			}
		}
	}
	return wrong
}

// upstreamPath returns where upstream's archive has the file with a published path; "" for one that was made again, differs from
// upstream's or is not in the manifest. The error says why the file could not be compared.
func (c *comparison) upstreamPath(path string) (string, error) {
	if why := c.unchecked[path]; why != "" {
		return "", errors.New(why)
	}
	return c.at[path], nil
}

// checkMaker says why minified files cannot be made again by this program: another program, version or options made them. It
// returns "" if they can, or if the entry does not say what made them.
func (c *comparison) checkMaker() string {
	m := c.claim.Entry.Maker
	program, version, options := worker.Minifier()
	if m != nil && (m.Program != program || m.Version != version || m.Options != options) {
		return fmt.Sprintf("it was made by %s %s with %s, and this larder has %s %s with %s",
			text.Short(m.Program, 60), text.Short(m.Version, 60), text.Short(m.Options, 200), program, version, options)
	}
	return ""
}

// remake minifies data, which the file f was made from, and compares the result with f. Another result is a
// [verify.Difference] if the entry says by what f was made; any other error says why the file could not be checked.
func (c *comparison) remake(ctx context.Context, f logs.File, data []byte) error {
	task := worker.MinifyJS
	if strings.EqualFold(path.Ext(f.Path), ".css") {
		task = worker.MinifyCSS
	}
	small, err := c.o.Minifiers.Do(ctx, c.claim.Manifest.Package+"@"+c.claim.Manifest.Version, task, data)
	if err != nil {
		return fmt.Errorf("it could not be made again: %w", err)
	}
	if kvstore.Sum(small) == f.SHA256 {
		return nil
	}
	if c.claim.Entry.Maker == nil {
		return errors.New("it comes out otherwise when this larder makes it again, and the entry does not say by which program and version it was made")
	}
	return differs("%s comes out otherwise when it is made again from %s, by %s %s", text.Short(f.Path, 300), text.Short(f.From, 300), c.claim.Entry.Maker.Program, c.claim.Entry.Maker.Version)
}

// compareProvenance verifies the attestations of an npm release that the log names, and compares them with what the log says. It
// records what the build's proves, and documents that name another repository. A contradiction is a [verify.Difference]. No
// attestation, or an invalid one that the log does not call verified, is not an error but noted. It does nothing for other sources
// than npm.
func (c *comparison) compareProvenance(ctx context.Context) error {
	if c.claim.Manifest.Source.Type != "npm" {
		return nil
	}
	kept := c.claim.Entry.Provenance
	if kept != nil && kept.Publish.Outcome == logs.AttestationVerified {
		if err := c.verifyPublication(ctx, kept.Publish); err != nil {
			return err
		}
	}
	if c.claim.Bundle == nil {
		switch {
		case kept == nil:
			c.addNote("the entry says nothing of provenance: it is older than that")
		default:
			c.addNote("provenance: %s", text.Short(kept.String(), 300))
		}
		return nil
	}
	build, err := c.o.Provenance.VerifyBuild(c.claim.Bundle, c.claim.Manifest.Source.Name, c.claim.Entry.Version, c.claim.Manifest.Source.Integrity)
	if err != nil {
		if kept.Outcome == logs.AttestationVerified {
			return differs("the log says that the attestation of provenance was verified, and it is not right: %s", text.Short(err.Error(), 500))
		}
		c.addNote("the attestation of provenance proves nothing: %s", text.Short(err.Error(), 300))
		return nil
	}
	if kept.Outcome == logs.AttestationVerified && (build.Repository != kept.Repository || build.Commit != kept.Commit || build.Workflow != kept.Workflow) {
		return differs("the log names the repository %s at commit %s, and the attestation %s at %s", text.Short(kept.Repository, 200), kept.Commit, build.Repository, build.Commit)
	}
	c.found.Provenance = &build
	for what, named := range map[string]string{"its package.json at npm": repositoryOf(c.own), "the package JSON of the catalogue": repositoryOf(c.claim.PackageJSON)} {
		if named != "" && !sameRepository(named, build.Repository) {
			c.found.Mismatches = append(c.found.Mismatches, fmt.Sprintf("%s names the repository %s, and it was built from %s", what, text.Short(named, 200), build.Repository))
		}
	}
	slices.Sort(c.found.Mismatches)
	return nil
}

// verifyPublication verifies the registry's attestation of the publication, which the log says was verified, and records the id of
// its key. A missing or wrong one is a [verify.Difference]. If the registry does not publish the key now, that is not an error but
// noted.
func (c *comparison) verifyPublication(ctx context.Context, kept logs.Publish) error {
	source := c.claim.Manifest.Source
	if c.claim.Publish == nil {
		return differs("the log says that the registry's own attestation was verified, and does not keep it")
	}
	id, err := npm.PublishKeyID(c.claim.Publish)
	if err != nil || id != kept.Key {
		return differs("the log says that the registry's own attestation was verified with the key %s, and it is not by that key", text.Short(kept.Key, 100))
	}
	key, ok, err := c.o.Npm.Key(ctx, source.Name, id)
	switch {
	case err != nil:
		return err
	case !ok:
		c.addNote("the registry's own attestation is by the key %s, which the registry does not publish now", text.Short(id, 100))
		return nil
	}
	err = c.o.Provenance.VerifyPublication(c.claim.Publish, source.Name, c.claim.Entry.Version, source.Integrity, key)
	if err != nil {
		return differs("the log says that the registry's own attestation was verified, and it is broken: %s", text.Short(err.Error(), 500))
	}
	c.found.Attested = id
	return nil
}

// addNote adds a formatted message to the result.
func (c *comparison) addNote(format string, args ...any) {
	c.found.Notes = append(c.found.Notes, fmt.Sprintf(format, args...))
}

// repositoryOf returns the address of the repository that a package.json or a package JSON names, as it is written; "" if it
// names none or is malformed.
func repositoryOf(document []byte) string {
	var named struct {
		Repository json.RawMessage `json:"repository"`
	}
	if json.Unmarshal(document, &named) != nil {
		return ""
	}
	var full struct {
		URL string `json:"url"`
	}
	var address string
	if json.Unmarshal(named.Repository, &address) != nil && json.Unmarshal(named.Repository, &full) == nil {
		address = full.URL
	}
	return address
}

// sameRepository reports whether address, the address of a repository as a URL, owner/name, github:owner/name or gitlab:owner/name,
// stands for the repository at the URL built. It returns false for an address in another form.
func sameRepository(address, built string) bool {
	host, rest := "github", address
	if before, after, ok := strings.Cut(address, ":"); ok && !strings.Contains(before, "/") && slices.Contains([]string{"github", "gitlab"}, before) {
		host, rest = before, after
	}
	if strings.Count(rest, "/") == 1 && !strings.ContainsAny(rest, ":@") {
		address = (&url.URL{Scheme: "https", Host: host + ".com", Path: "/" + rest}).String()
	}
	return git.CanonicalAddress(address) != "" && git.CanonicalAddress(address) == git.CanonicalAddress(built)
}

// mayBePublishedAs reports whether the file name of an archive may be published under a path: they are equal, or the fileMap
// of the package may have omitted folders from the beginning of the name.
func mayBePublishedAs(name, published string) bool {
	rest, ok := strings.CutSuffix(name, published)
	return ok && (rest == "" || strings.HasSuffix(rest, "/"))
}

// hashEntry returns the SHA-256 of what r contains, and the bytes if keep is true.
func hashEntry(r io.Reader, keep bool) (kvstore.Hash, []byte, error) {
	if keep {
		data, err := io.ReadAll(r)
		return kvstore.Sum(data), data, err
	}
	hash, err := kvstore.SumReader(r)
	return hash, nil, err
}

// differs returns a [verify.Difference] with a formatted message.
func differs(format string, args ...any) error { return verify.NewDifference(format, args...) }

// shortIntegrity returns an integrity cut to a length for messages.
func shortIntegrity(integrity string) string { return text.Short(integrity, 120) }

// asSignatureDifference returns an invalid signature of the registry as a [verify.Difference], and any other error unchanged.
func asSignatureDifference(err error) error {
	if errors.As(err, new(*npm.SignatureError)) {
		return differs("%v", err)
	}
	return err
}
