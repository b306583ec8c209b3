package npm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
)

// maxAttestations bounds the response with a version's attestations, in bytes; npm's have some 15,000.
const maxAttestations = 1 << 20

// Attestations gets the registry's response about the attestations of a version, without verifying it; [ParseAttestations] parses it. The
// error is [ErrNotFound] if the registry has none, and for any other status 4xx that is not temporary, such as 401.
func (c *Client) Attestations(ctx context.Context, v Version) (answer []byte, err error) {
	at, err := c.config.attestationsURL(v.Package, v.Version)
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
	var failure *fetch.Error
	if errors.As(err, &failure) && failure.Status/100 == 4 && !failure.Temporary {
		err = ErrNotFound // nothing is there, or nothing for us, as of a mirror that passes on packuments only
	}
	if err != nil {
		return nil, fmt.Errorf("npm package %s %s: couldn't get its attestations: %w", v.Package, v.Version, err)
	}
	return answer, nil
}

// attestationsURL returns where the registry of a package has the attestations of a version. As in npm, the host in the packument does not
// count.
func (c *Config) attestationsURL(name, version string) (*url.URL, error) {
	if !ValidName(name) {
		return nil, &NameError{Name: name}
	}
	base := *c.registryFor(name)
	base.RawQuery, base.Fragment = "", ""
	return url.Parse(strings.TrimRight(base.String(), "/") + "/-/npm/v1/attestations/" + strings.Replace(name, "/", "%2f", 1) + "@" + url.PathEscape(version))
}
