package api

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// PublicOptions is what the public routes need.
type PublicOptions struct {
	// Examples returns paths of assets that are there, most telling first, for whoever opens the address in a
	// browser. It is asked on every such visit. Nil for none.
	Examples func() []string
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
}

// Public returns the handler of every public path that is not an asset's.
func Public(o PublicOptions) http.Handler {
	e := newEngine(o.Logger)
	e.Use(cors)
	get(e, "/", o.index)
	get(e, "/health", func(c *gin.Context) {
		notCached(c)
		c.String(http.StatusOK, "OK")
	})
	e.NoRoute(func(c *gin.Context) {
		cachedFor(c, time.Hour)
		writeError(c, http.StatusNotFound, "Endpoint not found", "")
	})
	return e
}

// index is for a person who opens the address that `larder up` prints.
func (o PublicOptions) index(c *gin.Context) {
	var text strings.Builder
	text.WriteString("Larder serves the files of front-end packages at\n\n  /ajax/libs/{package}/{version}/{file}\n")
	var examples []string
	if o.Examples != nil {
		examples = o.Examples()
	}
	if len(examples) == 0 {
		text.WriteString("\nNo release has been published here yet.\n")
	} else {
		text.WriteString("\nFor example:\n\n")
		for _, path := range examples {
			text.WriteString("  " + path + "\n")
		}
	}
	notCached(c)
	c.String(http.StatusOK, "%s", text.String())
}

// newEngine is gin without its own logging, and with no opinion about paths.
func newEngine(logger *slog.Logger) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.Use(recovered(logger))
	return e
}

// get routes GET and HEAD of path, with and without a trailing slash.
func get(e *gin.Engine, path string, handler gin.HandlerFunc) {
	e.GET(path, handler)
	e.HEAD(path, handler)
	if path != "/" {
		e.GET(path+"/", handler)
		e.HEAD(path+"/", handler)
	}
}

func cors(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if c.Request.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Headers", "Accept,Accept-Version,Content-Length,Content-MD5,Content-Type,Date")
		h.Set("Access-Control-Allow-Methods", "GET,OPTIONS")
		c.AbortWithStatus(http.StatusNoContent)
	}
}

func notCached(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Cache-Control", "no-cache, no-store, must-revalidate")
	h.Set("Pragma", "no-cache")
	h.Set("Expires", "0")
}

func cachedFor(c *gin.Context, d time.Duration) {
	h := c.Writer.Header()
	h.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(d.Seconds())))
	h.Set("Expires", time.Now().Add(d).UTC().Format(http.TimeFormat))
}

// errorBody is what every error looks like to a client.
type errorBody struct {
	Error   bool   `json:"error"`
	Status  int    `json:"status"`
	Message string `json:"message"`
	Ref     string `json:"ref,omitempty"`
}

// writeError answers with the one shape of errors. The type has no charset: the contract's is application/json.
func writeError(c *gin.Context, status int, message, ref string) {
	c.Writer.Header().Set("Content-Type", "application/json")
	c.AbortWithStatusJSON(status, errorBody{Error: true, Status: status, Message: message, Ref: ref})
}

// recovered answers a panic with a 500 whose reference is in the log beside the stack.
func recovered(logger *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { // how a handler says that the connection is to be cut
				panic(cause)
			}
			ref := rand.Text()
			logger.Error("request panicked", "ref", ref, "method", c.Request.Method, "path", c.Request.URL.Path,
				"panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // too late for another answer: let the client see that this one broke off
			}
			notCached(c)
			writeError(c, http.StatusInternalServerError, "An unexpected error occurred", ref)
		}()
		c.Next()
	}
}
