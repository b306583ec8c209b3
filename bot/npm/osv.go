package npm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
)

const (
	maxOSVResponse = 32 << 20 // bytes of all pages together, which is also what OSV's own server limits a response to
	maxOSVPages    = 20
)

// Vulnerabilities requests the known vulnerabilities of a package from the OSV API at a URL, to which it appends /v1/query, and returns records in the
// OSV format. It requests each of up to twenty pages once, follows no redirect, and sends none of npm's credentials. It returns all records, nil for
// none, or an error, also for more pages or over 32 MiB.
func (c *Client) Vulnerabilities(ctx context.Context, api, name string) (records []json.RawMessage, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("vulnerabilities of npm package %s: %w", name, err)
		}
	}()
	at, err := url.Parse(strings.TrimSuffix(api, "/") + "/v1/query")
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     c.fetch.Transport(fetch.TransportOptions{Limit: maxOSVResponse, Trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, at) }}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	token, left := "", int64(maxOSVResponse)
	for range maxOSVPages {
		query, err := json.Marshal(map[string]any{"package": map[string]string{"name": name, "ecosystem": "npm"}, "page_token": token})
		if err != nil {
			return nil, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(query))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		var page struct {
			Vulns []json.RawMessage `json:"vulns"`
			Next  string            `json:"next_page_token"`
		}
		if response.StatusCode != http.StatusOK {
			err = c.fetch.StatusError(response)
		} else {
			body := &io.LimitedReader{R: response.Body, N: left + 1}
			err = json.NewDecoder(body).Decode(&page)
			if left = body.N - 1; left < 0 {
				err = fmt.Errorf("%w: over %d bytes of records", fetch.ErrTooLarge, maxOSVResponse)
			}
		}
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		records = append(records, page.Vulns...)
		if token = page.Next; token == "" {
			return records, nil
		}
	}
	return nil, fmt.Errorf("over %d pages of records", maxOSVPages)
}

// IsPublic reports whether a package comes from the registry that npm uses by default, and npm has no credentials for it. With
// credentials, the package may be private. It requests nothing, and returns false for an invalid name.
func (c *Client) IsPublic(name string) bool {
	at, err := c.config.packumentURL(name)
	return err == nil && c.config.Registry(name) == publicRegistry() && c.config.authorizationFor(at) == ""
}
