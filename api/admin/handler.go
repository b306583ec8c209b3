package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/gin-gonic/gin"
)

// An Operation does what a command asks for. It hands report what happens on the way, from any goroutine until it
// returns; events and result must have a JSON form. Its context ends when the client goes away or the process stops.
type Operation func(ctx context.Context, request json.RawMessage, report func(event any)) (result any, err error)

// Typed makes an Operation of a function that takes a request of its own type. Unknown properties are refused: they
// come from a client that expects more than this process can do.
func Typed[Request any](operate func(ctx context.Context, request Request, report func(event any)) (any, error)) Operation {
	return func(ctx context.Context, raw json.RawMessage, report func(any)) (any, error) {
		var request Request
		if err := decodeStrict(raw, &request); err != nil {
			return nil, fmt.Errorf("this process does not understand the request (%w); is it another release of Larder?", err)
		}
		return operate(ctx, request, report)
	}
}

// maxRequest bounds a request's body, in bytes.
const maxRequest = 1 << 20

// line is one line of an answer; exactly one of its members is there.
type line struct {
	Event  json.RawMessage `json:"event,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Handler serves the operations under their names.
func Handler(operations map[string]Operation, logger *slog.Logger) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	for name, operation := range operations {
		e.POST("/"+name, func(c *gin.Context) { serve(c, name, operation, logger) })
	}
	return e
}

func serve(c *gin.Context, name string, operation Operation, logger *slog.Logger) {
	request, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxRequest))
	if err != nil {
		c.String(http.StatusBadRequest, "%v", err)
		return
	}
	c.Writer.Header().Set("Content-Type", "application/x-ndjson")
	c.Writer.WriteHeader(http.StatusOK)
	c.Writer.Flush()

	lines := &lineWriter{w: c.Writer}
	result, err := safely(operation)(c.Request.Context(), request, func(event any) {
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
			err = ErrCutOff // the client is still there to read it only where it is this process that ends
		}
		end = line{Error: err.Error()}
	}
	lines.end(end)
}

type panicked struct{ cause, stack string }

func (p panicked) Error() string { return "internal error: " + p.cause }

// safely turns a panic of the operation into an error, so that the client gets an answer and the others go on.
func safely(operation Operation) Operation {
	return func(ctx context.Context, request json.RawMessage, report func(any)) (result any, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = panicked{cause: fmt.Sprint(cause), stack: string(debug.Stack())}
			}
		}()
		return operation(ctx, request, report)
	}
}

// lineWriter writes lines as a whole, whoever writes them, and none after the end. A client that has gone away is no
// concern here: the operation's context ends with it.
type lineWriter struct {
	mu    sync.Mutex
	w     gin.ResponseWriter
	ended bool
}

func (l *lineWriter) write(v line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	_ = json.NewEncoder(l.w).Encode(v)
	l.w.Flush()
}

func (l *lineWriter) end(v line) {
	l.write(v)
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
}
