package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

// NPMPrefix is where files have the addresses of other CDNs: the npm package, "@", an exact version, and the path in the npm
// package.
const NPMPrefix = "/npm/"

// redirectNPM responds to a GET or HEAD of an address below NPMPrefix, in which other CDNs name a file by its npm package,
// with a redirect (302) to the same file here, which caches may store for a day, or with a failure. It responds to other
// methods with 405. It waits for the client's turn first.
func (p *public) redirectNPM(c *gin.Context) {
	if c.Request.Method != http.MethodGet && c.Request.Method != http.MethodHead {
		respondFailure(c, answers.WrongMethod)
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), libraryTimeout)
	defer cancel()
	var location string
	err := p.runInTurn(ctx, c.Request, func() (err error) {
		location, err = p.locateNPM(ctx, c.Request)
		return err
	})
	if err != nil {
		respondError(c, p.Logger, err)
		return
	}
	redirect(c, oneDay, http.StatusFound, location)
}

// locateNPM returns the URL here of the file that the path of a request names by npm package, exact version and path in the
// package; only the URL's path if no asset base is configured. If the path is malformed, the version is not exact or the
// file is not published here, the error is a failure with status 404 that says why.
func (p *public) locateNPM(ctx context.Context, r *http.Request) (string, error) {
	a, ok := packages.ParseNPMPath(strings.TrimPrefix(requests.RawPath(r.URL), NPMPrefix))
	name, version, file := a.NPM, a.Version, a.NPMFile
	if !ok || file == "" {
		return "", notFoundFor("The address has the form " + NPMPrefix + "NAME@VERSION/PATH, as in " + NPMPrefix + "jquery@3.7.1/dist/jquery.js")
	}
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return "", err
	}
	l := listing.OfNPM(name)
	if l == nil || l.Version == "" {
		return "", notFoundFor("No library here has releases of the npm package " + name)
	}
	published := ""
	if packages.ValidVersion(version) {
		published, err = p.Library.FindNPMFile(ctx, l, version, file)
	} else {
		err = library.ErrNoVersion
	}
	switch {
	case errors.Is(err, library.ErrNoVersion):
		return "", notFoundFor("There is no version " + version + " here. Versions are exact, because a file whose address is mutable has no integrity: " + NPMPrefix + name + "@" + l.Version + "/" + file)
	case errors.Is(err, library.ErrNoFile):
		return "", notFoundFor("This file of the npm package is not published here. Files of " + l.Name + " " + version + " are listed at /libraries/" + l.Name + "/" + version)
	case err != nil:
		return "", err
	}
	return p.AssetBase + (&url.URL{Path: server.Prefix + l.Name + "/" + version + "/" + published}).EscapedPath(), nil
}

// notFoundFor returns a failure with status 404 and a message, which caches may store for five minutes only, because the
// file may be published at any moment.
func notFoundFor(message string) *answers.Failure {
	return &answers.Failure{Status: http.StatusNotFound, Message: message, Caching: fiveMinutes}
}
