package githubtest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// A problem is an error that GitHub has an answer for.
type problem struct {
	status  int
	message string
}

func (p problem) Error() string { return p.message }

var notFound = problem{http.StatusNotFound, "Not Found"}

// handle answers requests for something of a repository, by its name or its number.
func (s *Server) handle(pattern string, do func(*repository, *http.Request) (status int, body any, err error)) {
	method, rest, _ := strings.Cut(pattern, " ")
	answer := func(w http.ResponseWriter, r *http.Request) {
		repo, moved := s.find(r)
		if moved {
			w.Header().Set("Location", fmt.Sprintf("http://%s/repositories/%d%s", r.Host, repo.id, strings.TrimPrefix(r.URL.Path, "/repos/"+r.PathValue("owner")+"/"+r.PathValue("name"))))
			refuse(w, http.StatusMovedPermanently, "Moved Permanently")
			return
		}
		if repo == nil {
			refuse(w, http.StatusNotFound, "Not Found")
			return
		}
		status, body, err := do(repo, r)
		if errors.Is(err, plumbing.ErrObjectNotFound) || errors.Is(err, plumbing.ErrReferenceNotFound) {
			err = notFound
		}
		if p := (problem{}); errors.As(err, &p) {
			refuse(w, p.status, p.message)
		} else if err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
		} else if raw, ok := body.([]byte); ok {
			w.Header().Set("Content-Type", "application/vnd.github.raw")
			_, _ = w.Write(raw)
		} else {
			write(w, status, body)
		}
	}
	s.mux.HandleFunc(method+" /repos/{owner}/{name}"+rest, answer)
	s.mux.HandleFunc(method+" /repositories/{id}"+rest, answer)
}

func (s *Server) routes() {
	s.handle("GET ", (*repository).get)
	s.handle("GET /git/ref/{ref...}", (*repository).getRef)
	s.handle("POST /git/refs", (*repository).createRef)
	s.handle("PATCH /git/refs/{ref...}", (*repository).updateRef)
	s.handle("GET /git/commits/{sha}", (*repository).getCommit)
	s.handle("POST /git/commits", (*repository).createCommit)
	s.handle("POST /git/trees", (*repository).createTree)
	s.handle("POST /git/blobs", (*repository).createBlob)
	s.handle("GET /git/blobs/{sha}", (*repository).getBlob)
	s.handle("GET /contents/{path...}", (*repository).getContents)
	s.handle("PUT /contents/{path...}", (*repository).putContents)
}

// read reads a request's JSON.
func read[T any](r *http.Request) (v T, err error) {
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		return v, problem{http.StatusBadRequest, "Problems parsing JSON"}
	}
	return v, nil
}

// filled refuses what GitHub does not do in a repository without a commit.
func (r *repository) filled() error {
	refs, err := r.References()
	if err != nil {
		return err
	}
	defer refs.Close()
	for {
		ref, err := refs.Next()
		if errors.Is(err, io.EOF) {
			return problem{http.StatusConflict, "Git Repository is empty."}
		}
		if err != nil || ref.Type() == plumbing.HashReference {
			return err
		}
	}
}

func (r *repository) head(ref string) (*object.Commit, error) {
	found, err := r.Reference(plumbing.ReferenceName("refs/"+ref), true)
	if err != nil {
		return nil, err
	}
	return r.CommitObject(found.Hash())
}

func refBody(name, sha string) any {
	return map[string]any{"ref": "refs/" + name, "object": map[string]any{"type": "commit", "sha": sha}}
}

func (r *repository) getRef(q *http.Request) (int, any, error) {
	if err := r.filled(); err != nil {
		return 0, nil, err
	}
	name := q.PathValue("ref")
	commit, err := r.head(name)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, refBody(name, commit.Hash.String()), nil
}

func (r *repository) createRef(q *http.Request) (int, any, error) {
	in, err := read[struct{ Ref, SHA string }](q)
	if err == nil {
		err = r.filled()
	}
	if err != nil {
		return 0, nil, err
	}
	if _, err := r.Reference(plumbing.ReferenceName(in.Ref), true); err == nil {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Reference already exists"}
	}
	if _, err := r.CommitObject(plumbing.NewHash(in.SHA)); err != nil {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Object does not exist"}
	}
	return http.StatusCreated, refBody(strings.TrimPrefix(in.Ref, "refs/"), in.SHA), r.set(in.Ref, in.SHA)
}

func (r *repository) set(ref, sha string) error {
	return r.Storer.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(ref), plumbing.NewHash(sha)))
}

func (r *repository) updateRef(q *http.Request) (int, any, error) {
	in, err := read[struct {
		SHA   string
		Force bool
	}](q)
	if err != nil {
		return 0, nil, err
	}
	name := q.PathValue("ref")
	before, err := r.head(name)
	if err != nil {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Reference does not exist"}
	}
	after, err := r.CommitObject(plumbing.NewHash(in.SHA))
	if err != nil {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Object does not exist"}
	}
	if !in.Force && before.Hash != after.Hash {
		forward, err := before.IsAncestor(after)
		if err != nil {
			return 0, nil, err
		}
		if !forward {
			return 0, nil, problem{http.StatusUnprocessableEntity, "Update is not a fast forward"}
		}
	}
	return http.StatusOK, refBody(name, in.SHA), r.set("refs/"+name, in.SHA)
}

func commitBody(c *object.Commit) any {
	parents := []any{}
	for _, h := range c.ParentHashes {
		parents = append(parents, map[string]any{"sha": h.String()})
	}
	by := func(s object.Signature) any {
		return map[string]any{"name": s.Name, "email": s.Email, "date": s.When.UTC().Format(time.RFC3339)}
	}
	return map[string]any{"sha": c.Hash.String(), "message": c.Message, "author": by(c.Author), "committer": by(c.Committer), "tree": map[string]any{"sha": c.TreeHash.String()}, "parents": parents}
}

func (r *repository) getCommit(q *http.Request) (int, any, error) {
	c, err := r.CommitObject(plumbing.NewHash(q.PathValue("sha")))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, commitBody(c), nil
}

type person struct {
	Name, Email string
	Date        time.Time
}

func (p person) signature() object.Signature {
	return object.Signature{Name: p.Name, Email: p.Email, When: p.Date}
}

func (r *repository) createCommit(q *http.Request) (int, any, error) {
	in, err := read[struct {
		Message, Tree     string
		Parents           []string
		Author, Committer person
	}](q)
	if err == nil {
		err = r.filled()
	}
	if err != nil {
		return 0, nil, err
	}
	var parents []plumbing.Hash
	for _, p := range in.Parents {
		if _, err := r.CommitObject(plumbing.NewHash(p)); err != nil {
			return 0, nil, problem{http.StatusUnprocessableEntity, "Parent SHA does not exist or is not a commit object"}
		}
		parents = append(parents, plumbing.NewHash(p))
	}
	if _, err := r.TreeObject(plumbing.NewHash(in.Tree)); err != nil {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Tree SHA does not exist"}
	}
	c, err := r.store(&object.Commit{Author: in.Author.signature(), Committer: in.Committer.signature(), Message: in.Message,
		TreeHash: plumbing.NewHash(in.Tree), ParentHashes: parents})
	if err != nil {
		return 0, nil, err
	}
	made, err := r.CommitObject(c)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, commitBody(made), nil
}

func (r *repository) store(o interface {
	Encode(plumbing.EncodedObject) error
}) (plumbing.Hash, error) {
	e := r.Storer.NewEncodedObject()
	if err := o.Encode(e); err != nil {
		return plumbing.ZeroHash, err
	}
	return r.Storer.SetEncodedObject(e)
}

func (r *repository) storeBlob(data []byte) (plumbing.Hash, error) {
	e := r.Storer.NewEncodedObject()
	e.SetType(plumbing.BlobObject)
	w, err := e.Writer()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	_, err = w.Write(data)
	if err = errors.Join(err, w.Close()); err != nil {
		return plumbing.ZeroHash, err
	}
	return r.Storer.SetEncodedObject(e)
}

func (r *repository) createTree(q *http.Request) (int, any, error) {
	in, err := read[struct {
		BaseTree string `json:"base_tree"`
		Tree     []struct {
			Path, Mode, Type string
			SHA, Content     *string
		}
	}](q)
	if err == nil {
		err = r.filled()
	}
	if err != nil {
		return 0, nil, err
	}
	tree := plumbing.NewHash(in.BaseTree)
	for _, e := range in.Tree {
		var blob plumbing.Hash
		switch {
		case e.Mode != "100644" || e.Type != "blob" || (e.SHA == nil) == (e.Content == nil):
			return 0, nil, problem{http.StatusUnprocessableEntity, "tree.mode, tree.type, tree.sha or tree.content is not valid"}
		case e.SHA != nil:
			blob = plumbing.NewHash(*e.SHA)
		default:
			if blob, err = r.storeBlob([]byte(*e.Content)); err != nil {
				return 0, nil, err
			}
		}
		if _, err := r.BlobObject(blob); err != nil {
			return 0, nil, problem{http.StatusUnprocessableEntity, "tree.sha " + blob.String() + " is not a valid blob"}
		}
		if tree, err = r.put(tree, strings.Split(e.Path, "/"), blob); err != nil {
			return 0, nil, err
		}
	}
	return http.StatusCreated, map[string]any{"sha": tree.String(), "truncated": false}, nil
}

// put puts a file into a tree, and returns the tree that this makes.
func (r *repository) put(tree plumbing.Hash, at []string, blob plumbing.Hash) (plumbing.Hash, error) {
	var entries []object.TreeEntry
	if tree != plumbing.ZeroHash {
		t, err := r.TreeObject(tree)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		entries = slices.Clone(t.Entries)
	}
	e := object.TreeEntry{Name: at[0], Mode: filemode.Regular, Hash: blob}
	i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == at[0] })
	if len(at) > 1 {
		var below plumbing.Hash
		if i >= 0 && entries[i].Mode == filemode.Dir {
			below = entries[i].Hash
		}
		hash, err := r.put(below, at[1:], blob)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		e.Mode, e.Hash = filemode.Dir, hash
	}
	if i >= 0 {
		entries[i] = e
	} else {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(sortedAs(a), sortedAs(b)) })
	return r.store(&object.Tree{Entries: entries})
}

func sortedAs(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

func (r *repository) createBlob(q *http.Request) (int, any, error) {
	in, err := read[struct{ Content, Encoding string }](q)
	if err == nil {
		err = r.filled()
	}
	data := []byte(in.Content)
	if err == nil && in.Encoding == "base64" {
		data, err = base64.StdEncoding.DecodeString(in.Content)
	}
	if err != nil {
		return 0, nil, err
	}
	h, err := r.storeBlob(data)
	return http.StatusCreated, map[string]any{"sha": h.String()}, err
}

func (r *repository) getBlob(q *http.Request) (int, any, error) {
	blob, err := r.BlobObject(plumbing.NewHash(q.PathValue("sha")))
	if err != nil {
		return 0, nil, err
	}
	data, err := content(blob)
	if err != nil || strings.Contains(q.Header.Get("Accept"), "raw") {
		return http.StatusOK, data, err
	}
	return http.StatusOK, map[string]any{"sha": blob.Hash.String(), "size": len(data), "encoding": "base64", "content": wrapped(data)}, nil
}

func content(blob *object.Blob) ([]byte, error) {
	reader, err := blob.Reader()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

// wrapped is base64 as GitHub writes it: in lines.
func wrapped(data []byte) string {
	var b strings.Builder
	for part := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), 60) {
		fmt.Fprintf(&b, "%s\n", part)
	}
	return b.String()
}

// inContents is what a file may have to be in the answer about it.
const inContents = 1 << 20

func (r *repository) getContents(q *http.Request) (int, any, error) {
	if err := r.filled(); err != nil {
		return 0, nil, problem{http.StatusNotFound, "This repository is empty."}
	}
	ref := q.URL.Query().Get("ref")
	c, err := r.CommitObject(plumbing.NewHash(ref))
	if err != nil {
		return 0, nil, problem{http.StatusNotFound, "No commit found for the ref " + ref}
	}
	tree, err := c.Tree()
	if err != nil {
		return 0, nil, err
	}
	name := q.PathValue("path")
	e, err := tree.FindEntry(name)
	if err != nil {
		return 0, nil, notFound
	}
	if e.Mode == filemode.Dir {
		return http.StatusOK, []any{map[string]any{"type": "file"}}, nil
	}
	if e.Mode == filemode.Symlink {
		// The answer is about the file that the link leads to, where there is one.
		blob, err := r.BlobObject(e.Hash)
		if err != nil {
			return 0, nil, err
		}
		target, err := content(blob)
		if err != nil {
			return 0, nil, err
		}
		to, err := tree.FindEntry(path.Join(path.Dir(name), string(target)))
		if err != nil || to.Mode != filemode.Regular {
			return http.StatusOK, map[string]any{"type": "symlink", "name": path.Base(name), "path": name, "sha": e.Hash.String(), "target": string(target)}, nil
		}
		e = to
	}
	blob, err := r.BlobObject(e.Hash)
	if err != nil {
		return 0, nil, err
	}
	data, err := content(blob)
	body := map[string]any{"type": "file", "name": path.Base(name), "path": name, "sha": blob.Hash.String(), "size": len(data), "encoding": "base64", "content": wrapped(data)}
	if len(data) > inContents {
		body["encoding"], body["content"] = "none", ""
	}
	return http.StatusOK, body, err
}

// putContents makes a commit of one file on the default branch.
func (r *repository) putContents(q *http.Request) (int, any, error) {
	in, err := read[struct {
		Message           string
		Content           []byte
		Branch            string
		Author, Committer person
	}](q)
	if err != nil {
		return 0, nil, err
	}
	branch := "heads/" + r.defaultBranch
	if in.Branch != "" {
		branch = "heads/" + in.Branch
	}
	c := &object.Commit{Author: in.Author.signature(), Committer: in.Committer.signature(), Message: in.Message}
	var tree plumbing.Hash
	if before, err := r.head(branch); err == nil {
		t, err := before.Tree()
		if err != nil {
			return 0, nil, err
		}
		if _, err := t.FindEntry(q.PathValue("path")); err == nil {
			return 0, nil, problem{http.StatusUnprocessableEntity, `Invalid request. "sha" wasn't supplied.`}
		}
		tree, c.ParentHashes = before.TreeHash, []plumbing.Hash{before.Hash}
	}
	blob, err := r.storeBlob(in.Content)
	if err == nil {
		c.TreeHash, err = r.put(tree, strings.Split(q.PathValue("path"), "/"), blob)
	}
	if err != nil {
		return 0, nil, err
	}
	h, err := r.store(c)
	if err != nil {
		return 0, nil, err
	}
	if err := r.set("refs/"+branch, h.String()); err != nil {
		return 0, nil, err
	}
	made, err := r.CommitObject(h)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, map[string]any{"content": map[string]any{"path": q.PathValue("path")}, "commit": commitBody(made)}, nil
}
