package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
)

// packageModules returns the response to /packages/{library}/modules/{version}: the import map of the modules that were
// built from the version, for the subpaths in the query or all. It adds the version's cache tags to the header. The error is
// a failure with status 404 if there are none, or none for a subpath, or 503 while workers still read what the modules
// import; it queues that work for the client.
func (p *public) packageModules(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	assetBase, err := r.base(p.AssetBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	release, err := p.findRelease(ctx, r, l)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	prefix, _ := requests.ClientOf(r.RemoteAddr)
	documents := p.Renderer.Documents(prefix, p.Library.File, func(*library.PendingError) {})
	g, err := p.Library.ModuleMap(ctx, assetBase, release, r.query["subpath"], documents)
	if none := new(library.NoModulesError); errors.As(err, &none) {
		return nil, answers.Caching{}, &answers.Failure{Status: http.StatusNotFound, Message: none.Error(), Caching: fiveMinutes}
	}
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if g.Pending {
		return nil, answers.Caching{}, newUnavailable("The import map is not complete yet", 1)
	}
	data, err := json.Marshal(g)
	return newJSON(data), fiveMinutes, err
}
