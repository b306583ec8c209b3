package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
)

func do(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

func TestPanic(t *testing.T) {
	var log strings.Builder
	e := newEngine(slog.New(slog.NewJSONHandler(&log, nil)))
	e.GET("/early", func(*gin.Context) { panic("boom") })
	e.GET("/late", func(c *gin.Context) {
		c.String(http.StatusOK, "half")
		panic("boom")
	})
	w := do(e, "GET", "/early")
	var body struct {
		Error        bool
		Message, Ref string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if w.Code != 500 || !body.Error || body.Message != "An unexpected error occurred" || body.Ref == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w.Header().Get("Expires") != "0" {
		t.Error("the failure may be cached")
	}
	if !strings.Contains(log.String(), body.Ref) || !strings.Contains(log.String(), "boom") {
		t.Errorf("the log does not tell of %s: %s", body.Ref, log.String())
	}
	func() {
		defer func() {
			if cause := recover(); cause != http.ErrAbortHandler {
				t.Errorf("after the answer began, the panic was %v", cause)
			}
		}()
		do(e, "GET", "/late")
	}()
}
