package npm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
)

const (
	maxOSVResponse = 32 << 20 // bytes, which is also the limit of OSV's own server
	maxOSVPages    = 20
)

// Vulnerabilities requests the known vulnerabilities of a package from the OSV API at a URL, and returns records in the OSV
// format. It sends the request once, and none of npm's credentials.
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
	token := ""
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
			err = json.NewDecoder(response.Body).Decode(&page)
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

// IsPublic reports whether packages without a scope come from the registry that npm uses by default.
func (c *Client) IsPublic() bool { return c.config.Registry("npm") == publicRegistry() }
