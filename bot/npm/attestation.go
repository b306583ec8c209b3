package npm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/larder-cdn/larder/bot/fetch"
)

// maxAttestations bounds the response with a version's attestations, in bytes; npm's have some 15,000.
const maxAttestations = 1 << 20

// Attestations gets the registry's response about the attestations of a version, without verifying it; [ParseAttestations] parses it. The
// error is [ErrNotFound] if the registry has none, and for any other status 4xx that is not temporary, such as 401.
func (c *Client) Attestations(ctx context.Context, v Version) (answer []byte, err error) {
	defer v.wrapError(&err, "couldn't get its attestations: ")
	at, err := c.config.endpoint(v.Package, "-/npm/v1/attestations/"+escapeName(v.Package)+"@"+url.PathEscape(v.Version))
	if err == nil {
		err = c.fetch.Get(ctx, c.newRequest(at, http.Header{"Accept": {"application/json"}}, maxAttestations), func(r *fetch.Response) error {
			if r.Status != http.StatusOK {
				return fmt.Errorf("the registry answers %d instead of attestations", r.Status)
			}
			var err error
			answer, err = io.ReadAll(r.Body)
			return err
		})
	}
	if hasNothing(err) {
		err = ErrNotFound // or nothing for us, as of a mirror that passes on packuments only
	}
	return answer, err
}

// hasNothing reports whether an error says that a registry has nothing at an address, or nothing for this client: a status 4xx that is not
// temporary.
func hasNothing(err error) bool {
	failure, ok := errors.AsType[*fetch.Error](err)
	return ok && failure.Status/100 == 4 && !failure.Temporary
}

// wrapError puts the package, the version and doing in front of *err, unless that is nil. Methods that are about a version defer it.
func (v Version) wrapError(err *error, doing string) {
	if *err != nil {
		*err = fmt.Errorf("npm package %s %s: %s%w", v.Package, v.Version, doing, *err)
	}
}
