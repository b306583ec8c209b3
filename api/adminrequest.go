package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"
)

// Limits of a request.
const (
	maxRequest   = 48 << 20        // bytes of its JSON; the largest is a file of waiting rooms in base64
	maxContents  = 4 << 30         // bytes of its contents
	stallTimeout = 1 * time.Minute // the longest time in which no byte of the contents arrives
)

// withContents is the content type of a request with contents.
const withContents = "application/vnd.larder.request"

// readRequest reads the JSON of a request, of at most maxRequest bytes, and returns it with a reader of the contents behind
// it, which the operation reads later; [http.NoBody] for a request without contents. A request that is malformed or too large is an
// error.
func readRequest(c *gin.Context) (OperationRequest, error) {
	if c.ContentType() != withContents {
		encoded, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxRequest))
		return OperationRequest{JSON: encoded, Contents: http.NoBody}, err
	}
	body := &contentsReader{
		body:       http.MaxBytesReader(c.Writer, c.Request.Body, maxRequest+maxContents),
		connection: http.NewResponseController(c.Writer),
		ended:      c.Request.Context().Err,
	}
	decoder := json.NewDecoder(io.LimitReader(body, maxRequest))
	var encoded json.RawMessage
	if err := decoder.Decode(&encoded); err != nil {
		return OperationRequest{}, fmt.Errorf("couldn't read the JSON of the request: %w", err)
	}
	contents := io.MultiReader(decoder.Buffered(), body)
	var end [1]byte
	if _, err := io.ReadFull(contents, end[:]); err != nil || !bytes.Equal(end[:], []byte("\n")) {
		return OperationRequest{}, errors.Join(errors.New("no line feed follows the JSON of the request"), err)
	}
	return OperationRequest{JSON: encoded, Contents: contents}, nil
}

// contentsReader reads a request's body as long as bytes arrive. It replaces the server's time limit for a complete request by
// stallTimeout.
type contentsReader struct {
	body       io.Reader
	connection *http.ResponseController
	ended      func() error // why the operation has ended; nil while it has not
	err        error        // why reading ended
}

// Read implements io.Reader. It returns an error if the operation has ended, or no byte arrives for stallTimeout. After an
// error, also io.EOF, it reads nothing more and returns the same error.
func (r *contentsReader) Read(p []byte) (int, error) {
	if r.err == nil {
		r.err = r.ended()
	}
	if r.err != nil {
		return 0, r.err
	}
	r.setDeadline(time.Now().Add(stallTimeout))
	n, err := r.body.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no byte arrived for %v: %w", stallTimeout, err)
	}
	if r.err = err; err != nil {
		r.setDeadline(time.Time{}) // the deadline would otherwise end the operation
	}
	return n, err
}

// setDeadline sets the time until which reading from the connection may take; the zero time stands for no limit. It ignores
// connections without deadlines, which are pipes in the same process.
func (r *contentsReader) setDeadline(at time.Time) {
	r.connection.SetReadDeadline(at) //nolint:errcheck // see above
}
