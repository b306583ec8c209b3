package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/larder-cdn/larder/bot/fetch"
)

// A session reads one repository over smart HTTP, in version 2 of git's protocol (gitprotocol-v2), which lists only the
// references that are requested and sends only the files that are. Hosts that do not know it get version 0.
type session struct {
	at   *url.URL // of the repository, after redirects
	list *http.Client
	pack *http.Client
	// moved is the address to which the repository redirects; "" for the requested one.
	moved        string
	version2     bool
	capabilities map[string]string // values by name
	advertised   []reference       // all references, in version 0
}

// A reference is a branch or a tag of a repository.
type reference struct {
	name   string
	hash   plumbing.Hash
	peeled plumbing.Hash // the object that an annotated tag names in the end; zero for other references
	target string        // the branch that HEAD is; "" for other references
}

const (
	serviceType = "application/x-git-upload-pack-"
	agent       = "agent=larder"
)

// open starts a session with the repository at an address: it requests the host's capabilities and follows redirects. how says
// how requests are sent; its limit does not count. Old hosts list their references, too.
func (c *Client) open(ctx context.Context, at *url.URL, how fetch.TransportOptions) (*session, error) {
	client := func(limit int64) *http.Client {
		how.Limit = limit
		return &http.Client{
			Transport: c.o.Fetch.Transport(how),
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				if r.Method != http.MethodGet || len(via) > maxRedirects { // later requests go to where the first one arrived
					return http.ErrUseLastResponse
				}
				return nil
			},
		}
	}
	s := &session{at: at, list: client(c.o.RefBytes), pack: client(c.o.PackBytes)}
	home := at.JoinPath("info", "refs")
	home.RawQuery = "service=git-upload-pack"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, home.String(), nil)
	if err != nil {
		return nil, refusef("the address of the repository cannot be used: %.200v", err)
	}
	response, err := c.send(s.list, request, "advertisement")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if now := response.Request.URL; !fetch.SameOrigin(now, home) || now.Path != home.Path {
		s.at = now.JoinPath("..", "..")
		s.at.RawQuery = ""
		s.moved = fetch.Redact(s.at)
	}
	if err := s.readAdvertisement(response.Body); err != nil {
		return nil, protocolError(ctx, err)
	}
	return s, nil
}

// maxRedirects bounds the redirects of a repository in a row.
const maxRedirects = 5

// send sends a request to a repository through an HTTP client. It returns the response, whose body the caller closes, if its
// status is 200 and its content type is git's for kind, which is "advertisement" or "result"; else an error. Status 401 counts as
// [fetch.ErrNotFound], because hosts send it for repositories that are private or missing.
func (c *Client) send(through *http.Client, r *http.Request, kind string) (*http.Response, error) {
	r.Header.Set("Git-Protocol", "version=2")
	response, err := through.Do(r)
	if err != nil {
		return nil, protocolError(r.Context(), err)
	}
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		// Hosts respond so for a private repository, and for one that does not exist.
		err = &fetch.Error{URL: fetch.Redact(response.Request.URL), Status: response.StatusCode, Err: fmt.Errorf("%w, or it is not public", fetch.ErrNotFound)}
	case response.StatusCode != http.StatusOK:
		err = c.o.Fetch.StatusError(response)
	case !strings.HasPrefix(response.Header.Get("Content-Type"), serviceType+kind):
		err = &fetch.Error{URL: fetch.Redact(response.Request.URL), Status: response.StatusCode, Err: errors.New("there is no git repository (smart HTTP) at this address")}
	}
	if err != nil {
		response.Body.Close()
		return nil, err
	}
	return response, nil
}

// protocolError returns the error of a request or response for err: the cause for which ctx ended if it has, the *fetch.Error,
// *fetch.LocalError or *RefusedError in err, or else that the repository could not be read. The text contains no URL.
func protocolError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if ours, ok := errors.AsType[*fetch.Error](err); ok {
		return ours
	}
	if local, ok := errors.AsType[*fetch.LocalError](err); ok {
		return local
	}
	if errors.As(err, new(*RefusedError)) {
		return err
	}
	if request, ok := errors.AsType[*url.Error](err); ok { // it repeats the URL
		err = request.Err
	}
	return fmt.Errorf("couldn't read from the repository: %.200w", err)
}

// The special packets of git's protocol, which have no data.
const (
	flushPacket     = "\x00flush"
	delimiterPacket = "\x00delimiter"
	endPacket       = "\x00end"
)

// readPacket returns the next packet of git's protocol in r, without the line feed at its end, or one of the special packets,
// such as flushPacket. A packet with which the host reports an error is an error.
func readPacket(r io.Reader) (string, error) {
	data, special, err := readPacketBytes(r)
	if err != nil || special != "" {
		return special, err
	}
	line := strings.TrimSuffix(string(data), "\n")
	if message, ok := strings.CutPrefix(line, "ERR "); ok {
		return "", fmt.Errorf("the host reports: %.200s", message)
	}
	return line, nil
}

// readPacketBytes returns the content of the next packet of git's protocol in r. For one of the special packets, data is nil and
// special is, for example, flushPacket; else special is "".
func readPacketBytes(r io.Reader) (data []byte, special string, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, "", err
	}
	size, err := strconv.ParseUint(string(head[:]), 16, 16)
	if err != nil {
		return nil, "", fmt.Errorf("the packet length %q is malformed", head[:])
	}
	switch size {
	case 0:
		return nil, flushPacket, nil
	case 1:
		return nil, delimiterPacket, nil
	case 2:
		return nil, endPacket, nil
	case 3:
		return nil, "", errors.New("a packet length is malformed")
	}
	data = make([]byte, size-uint64(len(head)))
	_, err = io.ReadFull(r, data)
	return data, "", err
}

// writePackets appends packets of git's protocol to a request: each is a line without its line feed, or one of the special
// packets flushPacket and delimiterPacket.
func writePackets(b *bytes.Buffer, packets ...string) {
	for _, p := range packets {
		switch p {
		case flushPacket:
			b.WriteString("0000")
		case delimiterPacket:
			b.WriteString("0001")
		default:
			fmt.Fprintf(b, "%04x%s\n", len(p)+len("0000\n"), p)
		}
	}
}

// readAdvertisement reads a repository's response to the first request, and stores in s which version of the protocol the host
// has, its capabilities, and in version 0 all references. The error is a *[RefusedError] for too many capabilities or another
// object format, else one of the response.
func (s *session) readAdvertisement(r io.Reader) error {
	line, err := readPacket(r)
	if err == nil && strings.HasPrefix(line, "# service=") {
		if line, err = readPacket(r); err == nil && line == flushPacket {
			line, err = readPacket(r)
		}
	}
	if err != nil {
		return err
	}
	s.capabilities = make(map[string]string)
	if line != "version 2" {
		return s.readReferences(r, line)
	}
	s.version2 = true
	for range maxCapabilities {
		switch line, err := readPacket(r); {
		case err != nil:
			return err
		case line == flushPacket:
			return s.checkFormat()
		default:
			s.addCapability(line)
		}
	}
	return refusef("the host lists more than %d capabilities", maxCapabilities)
}

// maxCapabilities limits the capabilities that a host lists; known ones list about ten.
const maxCapabilities = 200

// addCapability stores a capability that the host lists, in the form name or name=value. Of symbolic references it stores only
// HEAD.
func (s *session) addCapability(text string) {
	name, value, _ := strings.Cut(text, "=")
	if name != "symref" || strings.HasPrefix(value, "HEAD:") {
		s.capabilities[name] = value
	}
}

// checkFormat returns a *[RefusedError] if the host says that the repository's objects have other hashes than SHA-1.
func (s *session) checkFormat() error {
	if format := s.capabilities["object-format"]; format != "" && format != "sha1" {
		return refusef("the repository uses the object format %.20q, and Larder reads sha1 only", format)
	}
	return nil
}

// readReferences reads and stores the references and capabilities that a host lists in version 0. line is the first packet; r has
// the others.
func (s *session) readReferences(r io.Reader, line string) error {
	if line == "version 1" {
		var err error
		if line, err = readPacket(r); err != nil {
			return err
		}
	}
	for first := true; line != flushPacket; first = false {
		text, capabilities, ok := strings.Cut(line, "\x00")
		if first {
			for c := range strings.FieldsSeq(capabilities) {
				s.addCapability(c)
			}
			if err := s.checkFormat(); err != nil {
				return err
			}
		} else if ok {
			return errors.New("a reference contains a zero byte")
		}
		digits, name, _ := strings.Cut(text, " ")
		if !plumbing.IsHash(digits) {
			return fmt.Errorf("the reference %.100q is malformed", text)
		}
		hash := plumbing.NewHash(digits)
		if tag, ok := strings.CutSuffix(name, "^{}"); !ok {
			s.advertised = append(s.advertised, reference{name: name, hash: hash})
		} else if last := len(s.advertised) - 1; last >= 0 && s.advertised[last].name == tag {
			s.advertised[last].peeled = hash
		}
		var err error
		if line, err = readPacket(r); err != nil {
			return err
		}
	}
	if from, target, ok := strings.Cut(s.capabilities["symref"], ":"); ok {
		if i := slices.IndexFunc(s.advertised, func(ref reference) bool { return ref.name == from }); i >= 0 {
			s.advertised[i].target = target
		}
	}
	return nil
}

// listReferences returns the references of the session's repository whose names begin with one of the prefixes. In version 2 of
// the protocol it requests them.
func (c *Client) listReferences(ctx context.Context, s *session, prefixes ...string) ([]reference, error) {
	var found []reference
	keep := func(ref reference) {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(ref.name, prefix) }) {
			found = append(found, ref)
		}
	}
	if !s.version2 {
		for _, ref := range s.advertised {
			keep(ref)
		}
		return found, nil
	}
	var request bytes.Buffer
	writePackets(&request, "command=ls-refs", agent, delimiterPacket, "peel", "symrefs")
	for _, prefix := range prefixes {
		writePackets(&request, "ref-prefix "+prefix)
	}
	writePackets(&request, flushPacket)
	response, err := c.postCommand(ctx, s, s.list, &request)
	if err != nil {
		return nil, err
	}
	defer response.Close()
	for {
		line, err := readPacket(response)
		if err != nil {
			return nil, protocolError(ctx, err)
		}
		if line == flushPacket {
			return found, nil
		}
		ref, err := parseReference(line)
		if err != nil {
			return nil, protocolError(ctx, err)
		}
		keep(ref)
	}
}

// parseReference parses a line that a host sends about a reference in version 2: hash, name and attributes.
func parseReference(line string) (reference, error) {
	fields := strings.Split(line, " ")
	if len(fields) < 2 || !plumbing.IsHash(fields[0]) {
		return reference{}, fmt.Errorf("the reference %.100q is malformed", line)
	}
	ref := reference{name: fields[1], hash: plumbing.NewHash(fields[0])}
	for _, attribute := range fields[2:] {
		if target, ok := strings.CutPrefix(attribute, "symref-target:"); ok {
			ref.target = target
		} else if peeled, ok := strings.CutPrefix(attribute, "peeled:"); ok && plumbing.IsHash(peeled) {
			ref.peeled = plumbing.NewHash(peeled)
		}
	}
	return ref, nil
}

// postCommand sends the command in body to the session's repository through an HTTP client, and returns the body of the response,
// which the caller closes.
func (c *Client) postCommand(ctx context.Context, s *session, through *http.Client, body *bytes.Buffer) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.at.JoinPath("git-upload-pack").String(), body)
	if err != nil {
		return nil, refusef("the address of the repository cannot be used: %.200v", err)
	}
	request.Header.Set("Content-Type", serviceType+"request")
	request.Header.Set("Accept", serviceType+"result")
	response, err := c.send(through, request, "result")
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// supportsPartial reports whether the host can send commits without the contents of files, and single files by their hashes.
func (s *session) supportsPartial() bool {
	return s.version2 && slices.Contains(strings.Fields(s.capabilities["fetch"]), "filter")
}

// packContent is the objects of a pack that were requested by their hashes.
type packContent int

const (
	commitWithFiles   packContent = iota // a commit with its folders and files, but not the commits before it
	commitWithFolders                    // a commit with its folders only; the host has to be partial
	singleFiles                          // files; the host has to be partial
)

// packTimeout is how long the download of a pack may take in all; fetch refuses a host that is slower than a few KiB a second.
const packTimeout = 30 * time.Minute

var errPackTimeout = fmt.Errorf("the repository has not sent the pack within %v", packTimeout)

// fetchPack fetches the objects with the hashes wants, and those that content says, in a pack, whose file is in the folder dir.
// The download has 30 minutes. Then fetchPack waits for a slot of c.pack, which the pack has until leave or close is called. The
// caller closes the pack.
func (c *Client) fetchPack(ctx context.Context, s *session, content packContent, wants []plumbing.Hash, dir string) (*pack, error) {
	request := s.packRequest(content, wants)
	download, cancel := context.WithTimeoutCause(ctx, packTimeout, errPackTimeout)
	defer cancel()
	response, err := c.postCommand(download, s, s.pack, request)
	if err != nil {
		return nil, err
	}
	defer response.Close()
	data, err := s.findPack(response)
	if err != nil {
		return nil, protocolError(download, err)
	}
	p, err := receivePack(ctx, data, dir, c.pack)
	if err != nil {
		return nil, protocolError(download, err)
	}
	return p, nil
}

// packRequest returns the body of a request for a pack with the objects wants, and those that content says, in the version of the
// protocol that the host has.
func (s *session) packRequest(content packContent, wants []plumbing.Hash) *bytes.Buffer {
	b := new(bytes.Buffer)
	if s.version2 {
		writePackets(b, "command=fetch", agent, delimiterPacket, "no-progress", "ofs-delta")
		if content != singleFiles && slices.Contains(strings.Fields(s.capabilities["fetch"]), "shallow") {
			writePackets(b, "deepen 1")
		}
		if content == commitWithFolders {
			writePackets(b, "filter blob:none")
		}
		for _, hash := range wants {
			writePackets(b, "want "+hash.String())
		}
		writePackets(b, "done", flushPacket)
		return b
	}
	requested := []string{agent}
	for _, name := range []string{"side-band-64k", "ofs-delta", "no-progress", "shallow"} {
		if _, ok := s.capabilities[name]; ok {
			requested = append(requested, name)
		}
	}
	for i, hash := range wants {
		line := "want " + hash.String()
		if i == 0 {
			line += " " + strings.Join(requested, " ")
		}
		writePackets(b, line)
	}
	if _, ok := s.capabilities["shallow"]; ok {
		writePackets(b, "deepen 1")
	}
	writePackets(b, flushPacket, "done")
	return b
}

// findPack reads a host's response r up to the beginning of its pack, and returns a reader of the pack alone, which reads on from
// r. It returns an error if r ends before or reports one.
func (s *session) findPack(r io.Reader) (io.Reader, error) {
	for {
		line, err := readPacket(r)
		if err != nil {
			return nil, err
		}
		switch {
		case s.version2 && line == "packfile":
			return &sideband{r: r}, nil
		case !s.version2 && line == "NAK":
			if _, ok := s.capabilities["side-band-64k"]; ok {
				return &sideband{r: r}, nil
			}
			return r, nil
		}
	}
}

// A sideband reads a pack from packets, each of which begins with a byte that says what it has.
type sideband struct {
	r    io.Reader
	left []byte // of the packet that was read last
}

// Read implements io.Reader. It returns the bytes of the pack, skips the host's progress messages, and returns a message of an
// error as an error.
func (s *sideband) Read(p []byte) (int, error) {
	for len(s.left) == 0 {
		data, special, err := readPacketBytes(s.r)
		switch {
		case err == io.EOF:
			return 0, io.ErrUnexpectedEOF // a flush packet is missing
		case err != nil:
			return 0, err
		case special != "":
			return 0, io.EOF
		case len(data) == 0:
			return 0, errors.New("a packet of the pack is empty")
		}
		switch data[0] {
		case 1:
			s.left = data[1:]
		case 2: // progress
		case 3:
			return 0, fmt.Errorf("the host reports: %.200s", strings.TrimSpace(string(data[1:])))
		default:
			return 0, errors.New("a packet of the pack is malformed")
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}
