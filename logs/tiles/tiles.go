package tiles

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// Options are what the handler needs.
type Options struct {
	// Store holds the entries, the tree and what the entries name. Required.
	Store Store
	// Signer tells what is signed. Required.
	Signer Signer
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: nobody.
	Registerer prometheus.Registerer
}

// A Signer is what the handler asks of a [signing.Signer].
type Signer interface {
	Checkpoint() (signing.Signed, error)
	Origin() string
	Key() string
	KeyChanges() ([]signing.KeyChange, error)
}

// New returns the handler of all that is below [Prefix].
func New(o Options) (http.Handler, error) {
	h := &handler{Options: o, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_log_requests_total",
		Help: `Requests for the log, by what was asked for ("none" where there is no such thing) and status.`,
	}, []string{"what", "status"})}
	if o.Registerer != nil {
		if err := o.Registerer.Register(h.requests); err != nil {
			return nil, err
		}
	}
	compressing, err := gzhttp.NewWrapper()
	if err != nil {
		return nil, err
	}
	compressed := compressing(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, Prefix+"tile/entries/") || strings.HasPrefix(r.URL.Path, Prefix+"content/") { // hashes do not get any smaller
			compressed.ServeHTTP(w, r)
		} else {
			h.ServeHTTP(w, r)
		}
	}), nil
}

// Route returns a handler that answers what is below [Prefix] with log, and the
// others with rest. It leaves every path as it is.
func Route(log, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, Prefix) {
			log.ServeHTTP(w, r)
		} else {
			rest.ServeHTTP(w, r)
		}
	})
}

type handler struct {
	Options
	requests *prometheus.CounterVec
}

const (
	// cacheForever is 355 days, as for assets.
	cacheForever = "public, max-age=30672000, immutable"
	noStore      = "no-store"
	methods      = "GET, HEAD, OPTIONS"
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A verifier may be a script in a page of somebody else.
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", "*")
	header.Set("Timing-Allow-Origin", "*")
	header.Set("Cross-Origin-Resource-Policy", "cross-origin")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", noStore)
	t := parse(r.URL.EscapedPath())
	status := h.answer(w, r, t)
	h.requests.WithLabelValues(t.kind.String(), strconv.Itoa(status)).Inc()
}

// answer returns the status.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, t target) int {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		w.Header().Set("Allow", methods)
		w.Header().Set("Access-Control-Allow-Methods", methods)
		w.Header().Set("Access-Control-Allow-Headers", "*")
		w.Header().Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	default:
		w.Header().Set("Allow", methods)
		return fail(w, http.StatusMethodNotAllowed, "The log can only be read")
	}
	switch t.kind {
	case nothing:
		return fail(w, http.StatusNotFound, "The log has no such path")
	case key:
		return send(w, "text/plain; charset=utf-8", []byte(h.Signer.Key()+"\n"))
	}
	if t.kind == keys {
		return h.sendKeys(w)
	}
	signed, err := h.Signer.Checkpoint()
	if err != nil {
		return fail(w, http.StatusServiceUnavailable, "The log is not signed: "+publicReason(err))
	}
	if t.kind == checkpoint {
		return send(w, "text/plain; charset=utf-8", signed.Note)
	}
	if !t.within(signed.Size) {
		return fail(w, http.StatusNotFound, fmt.Sprintf("The log has %d entries, so it does not have all of that", signed.Size))
	}
	data, err := h.read(t)
	if errors.Is(err, errNotNamed) {
		return fail(w, http.StatusNotFound, fmt.Sprintf("Entry %d names no such content", t.n))
	}
	if err != nil {
		return h.unreadable(w, r.URL.Path, err)
	}
	if t.immutable() {
		w.Header().Set("Cache-Control", cacheForever)
	}
	return send(w, "application/octet-stream", data)
}

func (h *handler) unreadable(w http.ResponseWriter, path string, err error) int {
	h.Logger.Error("couldn't read the log", "path", path, "err", err)
	return fail(w, http.StatusServiceUnavailable, "That part of the log cannot be read")
}

// Keys is the body of /log/keys. It proves itself: by the changes' signatures, who
// has pinned an earlier key gets to the present one ([signing.Follow]).
type Keys struct {
	Origin  string              `json:"origin"`
	Key     string              `json:"key"`
	Changes []signing.KeyChange `json:"changes"` // oldest first
}

func (h *handler) sendKeys(w http.ResponseWriter) int {
	body := Keys{Origin: h.Signer.Origin(), Key: h.Signer.Key(), Changes: []signing.KeyChange{}}
	changes, err := h.Signer.KeyChanges()
	if err != nil {
		return h.unreadable(w, Prefix+"keys", err)
	}
	body.Changes = append(body.Changes, changes...)
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // of what there is nothing that could
	}
	return send(w, "application/json; charset=utf-8", data)
}

// read returns a tile, a bundle of entries or a content.
func (h *handler) read(t target) ([]byte, error) {
	switch t.kind {
	case content:
		return h.readContent(t)
	case hashes:
		return tlog.ReadTileData(tlog.Tile{H: height, L: t.level, N: t.n, W: t.width}, logs.Hashes(h.Store))
	}
	raw, err := logs.RawEntries(h.Store, t.n<<height, t.width)
	if err != nil {
		return nil, err
	}
	var bundle []byte
	for _, entry := range raw {
		bundle = binary.BigEndian.AppendUint16(bundle, uint16(len(entry))) // logs.MaxEntry is less
		bundle = append(bundle, entry...)
	}
	return bundle, nil
}

func send(w http.ResponseWriter, contentType string, data []byte) int {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Write(data) // the client may have left
	return http.StatusOK
}

// fail answers in the form that all errors of the API have.
func fail(w http.ResponseWriter, status int, message string) int {
	body, err := json.Marshal(struct {
		Error   bool   `json:"error"`
		Status  int    `json:"status"`
		Message string `json:"message"`
	}{true, status, message})
	if err != nil {
		panic(err) // of what there is nothing that could
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
	return status
}

// publicReason is what everybody may know of an error.
func publicReason(err error) string {
	var refused *signing.RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return "the operator's log tells why"
}
