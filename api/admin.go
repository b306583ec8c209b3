package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/gin-gonic/gin"
)

// An AdminClient sends operations to an AdminHandler in this process or another.
type AdminClient struct {
	http *http.Client
	at   string // the URL that precedes an operation's name
}

// ErrCutOff means that the response ended before the operation did.
var ErrCutOff = errors.New("the larder process ended, or restarted its role, before it was done; see whether it was, and try again when it serves")

// AdminInProcess returns a client of a handler in this process, and starts a server of it. It speaks the same HTTP over a pipe,
// so that commands take one path whether or not another process owns the data folder. The caller calls stop once at the end:
// it waits for the operations under way, without a limit, and ends the server.
func AdminInProcess(handler http.Handler) (client *AdminClient, stop func() error) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	go server.Serve(l) //nolint:errcheck // it ends with Shutdown
	return newSocketClient(l.dial), func() error { return server.Shutdown(context.Background()) }
}

// newSocketClient returns a client that opens its connections by calling dial, a new one for each request. It connects to nothing
// yet.
func newSocketClient(dial func(ctx context.Context) (net.Conn, error)) *AdminClient {
	return &AdminClient{at: "http://larder/", http: &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true, // a command asks once; a process that shuts down need not wait for idle connections
	}}}
}

// NewAdminClient returns a client of an AdminHandler that is reached through client at the URL at, which ends with a slash. It
// connects to nothing and checks nothing: authentication is up to client and the server at that URL.
func NewAdminClient(client *http.Client, at string) *AdminClient {
	return &AdminClient{http: client, at: at}
}

// SendOperation has the process run an operation, passes the operation's events to report (which may be nil) as they come, and
// returns its result. request is encoded as JSON; the bytes of contents, nil for none, follow it. When ctx ends, so does the
// operation, and the error is the cause of that. [ErrCutOff] means that the process ended first; other errors are those of the
// operation, as text, or of reaching it. A goroutine may still read from contents after SendOperation has returned.
func SendOperation[Result, Event any](
	ctx context.Context, c *AdminClient, operation string, request any, contents io.Reader, report func(Event),
) (Result, error) {
	var result Result
	raw, err := c.call(ctx, operation, request, contents, func(raw json.RawMessage) error {
		if report == nil {
			return nil
		}
		var event Event
		if err := json.Unmarshal(raw, &event); err != nil {
			return err
		}
		report(event)
		return nil
	})
	if err != nil {
		return result, err
	}
	return result, json.Unmarshal(raw, &result)
}

// ForwardOperation sends the request of an operation to another process, as [SendOperation] does, and returns the result without
// decoding it. It passes the events to report, also undecoded. No goroutine reads the contents after ForwardOperation has returned.
func ForwardOperation(
	ctx context.Context, c *AdminClient, operation string, r OperationRequest, report func(json.RawMessage),
) (json.RawMessage, error) {
	if r.Contents == http.NoBody {
		return SendOperation[json.RawMessage](ctx, c, operation, r.JSON, nil, report)
	}
	contents := &revocableReader{r: r.Contents}
	defer contents.revoke()
	return SendOperation[json.RawMessage](ctx, c, operation, r.JSON, contents, report)
}

// A revocableReader reads from another reader until it is revoked. An HTTP client may still read a request's body after it has
// returned the response.
type revocableReader struct {
	mu sync.Mutex // held while r is read
	r  io.Reader  // nil once this reader is revoked
}

// Read implements io.Reader: it reads from the other reader, or returns [io.ErrClosedPipe] once this one is revoked.
func (r *revocableReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.r == nil {
		return 0, io.ErrClosedPipe
	}
	return r.r.Read(p)
}

// revoke waits for the current read and makes later reads fail. It does not close the other reader.
func (r *revocableReader) revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r = nil
}

// encodeRequest returns a request as JSON, without a line feed at the end. It does not escape HTML characters: an escaped
// one takes six bytes, so that the request that a node forwards would exceed the size limit.
func encodeRequest(request any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(request)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// newRequest returns the HTTP request for an operation, a POST. Its body is the request as a line of JSON and, unless
// contents is nil, the contents after that line. If the line has more than maxRequest bytes, newRequest returns an error.
func (c *AdminClient) newRequest(ctx context.Context, operation string, request any, contents io.Reader) (*http.Request, error) {
	encoded, err := encodeRequest(request)
	if err != nil {
		return nil, err
	}
	if len(encoded) > maxRequest {
		return nil, fmt.Errorf("the request of the operation %q has %d bytes, more than the limit of %d", operation, len(encoded), maxRequest)
	}
	body, contentType := io.Reader(bytes.NewReader(encoded)), "application/json"
	if contents != nil {
		body, contentType = io.MultiReader(body, strings.NewReader("\n"), contents), withContents
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.at+operation, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", contentType)
	return r, nil
}

// call sends a request for an operation, and contents unless that is nil, to the process, passes each event of the response,
// as JSON, to event, and returns the result as JSON. An error of event ends the call. [ErrCutOff] means that the response
// ended without a result or error; if ctx ends, the error is its cause. An error of the operation is one with its text.
func (c *AdminClient) call(
	ctx context.Context, operation string, request any, contents io.Reader, event func(json.RawMessage) error,
) (json.RawMessage, error) {
	r, err := c.newRequest(ctx, operation, request, contents)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("couldn't reach the larder process: %w", err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("the running larder process does not know the operation %q; it is another release than this command, restart it", operation)
	case response.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("the running larder process answered %s: %s", response.Status, bytes.TrimSpace(text))
	}
	for decoder := json.NewDecoder(response.Body); ; {
		var l line
		if err := decoder.Decode(&l); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, ErrCutOff
		}
		switch {
		case l.Event != nil:
			if err := event(l.Event); err != nil {
				return nil, fmt.Errorf("the running larder process sent what this command cannot read (%w); it is another release, restart it", err)
			}
		case l.Error != "":
			return nil, errors.New(l.Error)
		default:
			return l.Result, nil
		}
	}
}

// decodeStrict decodes JSON into the value that into points to. It returns an error if the JSON has a field that the value
// does not have. It ignores what follows the first value.
func decodeStrict(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// A pipeListener is a net.Listener that passes one end of each pipe that dial makes to a server in the same process.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

// dial creates a pipe, passes one end to the server and returns the other, the client's. It waits until the server accepts,
// ctx ends (the error of ctx) or the listener is closed ([net.ErrClosed]).
func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener: it returns the server's end of the next pipe that dial creates, or net.ErrClosed after
// Close.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener: it makes Accept and dial return net.ErrClosed. It must be called only once.
func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener. A pipe has no address, so it returns a placeholder.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "in process", Net: "pipe"} }

// socketName is the socket's name in a data folder.
const socketName = "admin.sock"

// ListenAdmin creates the socket in the data folder dir, and replaces one that exists, such as that of a process that crashed.
// Only this user can connect. The caller must own the folder's store, so that no other process uses that socket. Closing the
// listener removes the socket.
func ListenAdmin(dir string) (net.Listener, error) {
	// ListenAdmin creates the socket in a folder that no other user can enter, sets its permissions and then renames it. The
	// rename replaces a stale socket atomically.
	nursery := filepath.Join(dir, "admin.new")
	if err := os.RemoveAll(nursery); err != nil {
		return nil, fmt.Errorf("couldn't prepare the admin socket: %w", err)
	}
	if err := os.Mkdir(nursery, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't prepare the admin socket: %w", err)
	}
	defer os.RemoveAll(nursery)

	var listener *net.UnixListener
	err := shortPath(nursery, func(folder string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(folder, socketName)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("couldn't make the admin socket in %s: %w", dir, err)
	}
	listener.SetUnlinkOnClose(false) // net would unlink the path before the rename
	made, path := filepath.Join(nursery, socketName), filepath.Join(dir, socketName)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("couldn't make the admin socket: %w", err)
	}
	return &socket{UnixListener: listener, path: path}, nil
}

// A socket is the listener of the admin socket at path.
type socket struct {
	*net.UnixListener
	path string
}

// Close implements net.Listener: it stops listening and removes the socket from the data folder. Only the first call removes
// it.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if !errors.Is(err, net.ErrClosed) { // only the first Close removes the socket: later it may be another process's
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// ErrNoProcess means that no process listens on the socket of the data folder.
var ErrNoProcess = errors.New("no larder process runs on this data folder")

// DialAdmin connects once to the process that owns the data folder dir, to find out whether one runs, and returns a client of it,
// which connects again for each operation. It returns [ErrNoProcess] if none runs.
func DialAdmin(ctx context.Context, dir string) (*AdminClient, error) {
	conn, err := ConnectAdmin(ctx, dir)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, ErrNoProcess
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("a larder process of another user may run on %s; run this command as that user: %w", dir, err)
	case err != nil:
		return nil, fmt.Errorf("couldn't reach the larder process on %s: %w", dir, err)
	}
	conn.Close()
	return newSocketClient(func(ctx context.Context) (net.Conn, error) { return ConnectAdmin(ctx, dir) }), nil
}

// ConnectAdmin returns a new connection to the admin socket of the process that owns the data folder dir; the caller closes it.
// If no process runs, it returns the error of the operating system.
func ConnectAdmin(ctx context.Context, dir string) (conn net.Conn, err error) {
	err = shortPath(dir, func(folder string) error {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(folder, socketName))
		return err
	})
	return conn, err
}

// maxSocketPath is the length of a socket's path that all supported systems allow: macOS has 104 bytes with the closing NUL.
const maxSocketPath = 103

// shortPath calls use with a path of the folder that is short enough for the address of a socket in it, and returns the
// error of use. On Linux that is a path by file descriptor if the folder's own path is too long, valid only during the call;
// on other systems a path that is too long is an error.
func shortPath(folder string, use func(folder string) error) error {
	if len(filepath.Join(folder, socketName)) <= maxSocketPath {
		return use(folder)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the path of the data folder %s is too long for a socket; choose one with at most %d bytes", folder, maxSocketPath-len(socketName)-12)
	}
	open, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer open.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d", open.Fd()))
}

// An OperationRequest is the request of an operation.
type OperationRequest struct {
	JSON json.RawMessage
	// Contents are the bytes behind the JSON. It is never nil; most requests have none.
	Contents io.Reader
}

// An Operation executes a command. It may call report with events from any goroutine until it returns; later events are
// dropped. Events and result must encode to JSON. The context ends when the client disconnects or the process stops.
type Operation func(ctx context.Context, request OperationRequest, report func(event any)) (result any, err error)

// TypedOperation makes an Operation of a function that takes a request of its own type, and the contents that follow it
// (never nil). It returns an error if the request has properties that the type does not have, because a newer client sent
// them and expects them to have an effect.
func TypedOperation[R any](operate func(ctx context.Context, request R, contents io.Reader, report func(event any)) (any, error)) Operation {
	return func(ctx context.Context, raw OperationRequest, report func(any)) (any, error) {
		var request R
		if err := decodeStrict(raw.JSON, &request); err != nil {
			return nil, fmt.Errorf("this process does not understand the request (%w); is it another release of Larder?", err)
		}
		return operate(ctx, request, raw.Contents, report)
	}
}

// line is one line of a response. Exactly one of its fields is set.
type line struct {
	Event  json.RawMessage `json:"event,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// AdminHandler returns a handler that runs operations for clients: each at a POST to /NAME, by its name in the map. It responds
// to a malformed request with 400, and to all others with 404. logger logs panics and events that cannot be encoded.
//
// Commands speak to the process that owns a data folder by a small protocol over HTTP on a Unix socket in that folder: an
// operation is a POST of a JSON request to /{name}; the response is a stream of JSON lines, any number of {"event": …} followed
// by one {"result": …} or {"error": "…"}. A stream without such an end was cut off. Ending the request cancels the operation.
//
// A request with contents is the JSON request, a line feed and the bytes of the contents, with its own content type. The
// operation reads them before its first event.
//
// Access is the socket's permissions, nothing else: only the user who runs the process may connect. The protocol does not
// know what the operations are; the same AdminHandler responds through [AdminInProcess] if no process runs.
func AdminHandler(operations map[string]Operation, logger *slog.Logger) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	for name, operation := range operations {
		e.POST("/"+name, func(c *gin.Context) { serveOperation(c, name, operation, logger) })
	}
	return e
}

// serveOperation reads the request in c, runs the operation called name, and sends its events and then its result or error
// as lines of JSON. To a malformed request it responds with 400. A panic of the operation is logged, and is an error for the
// client. After an error it reads the rest of the contents, because the client reads the response only after it has sent
// them all.
func serveOperation(c *gin.Context, name string, operation Operation, logger *slog.Logger) {
	request, err := readRequest(c)
	if err != nil {
		c.String(http.StatusBadRequest, "%v", err)
		return
	}
	c.Writer.Header().Set("Content-Type", "application/x-ndjson")
	if c.ContentType() != withContents { // with contents, the operation reads them first: net/http allows no response before that
		c.Writer.WriteHeader(http.StatusOK)
		c.Writer.Flush()
	}

	lines := &lineWriter{w: c.Writer}
	result, err := operation.run(c.Request.Context(), request, func(event any) {
		if raw, err := json.Marshal(event); err == nil {
			lines.write(line{Event: raw})
		} else {
			logger.Error("admin event has no JSON form", "operation", name, "err", err)
		}
	})
	end := line{}
	if err == nil {
		end.Result, err = json.Marshal(result)
	}
	if err != nil {
		if broken := (panicked{}); errors.As(err, &broken) {
			logger.Error("admin operation panicked", "operation", name, "panic", broken.cause, "stack", broken.stack)
		}
		if errors.Is(err, context.Canceled) && c.Request.Context().Err() != nil {
			err = ErrCutOff // only if this process stops is the client still connected to read it
		}
		end = line{Error: err.Error()}
		// A client reads the response only after it has sent all contents.
		io.Copy(io.Discard, request.Contents) //nolint:errcheck // the error to report is that of the operation
	}
	lines.write(end)
}

// panicked is the error of an operation that panicked: the value of the panic, and the stack.
type panicked struct{ cause, stack string }

// Error returns a message with the value of the panic, without the stack.
func (p panicked) Error() string { return "internal error: " + p.cause }

// run runs the operation. It returns a panic as an error of type panicked, so that the client gets a response and other
// operations continue.
func (o Operation) run(ctx context.Context, request OperationRequest, report func(any)) (result any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = panicked{cause: fmt.Sprint(cause), stack: string(debug.Stack())}
		}
	}()
	return o(ctx, request, report)
}

// A lineWriter writes complete lines from any goroutine, and none after the final line. It ignores write errors, because the
// operation's context ends when the client disconnects.
type lineWriter struct {
	mu    sync.Mutex
	w     gin.ResponseWriter
	ended bool
}

// write sends one line of the response at once and flushes it. It does nothing after a line with the result or an error, which is
// the last. It ignores errors.
func (l *lineWriter) write(v line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	_ = json.NewEncoder(l.w).Encode(v)
	l.w.Flush()
	l.ended = v.Event == nil
}
