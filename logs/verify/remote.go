package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// errNotThere is that the server has no such path.
var errNotThere = errors.New("there is no such thing")

// timeout is for one answer, body and all.
const timeout = 2 * time.Minute

// remote asks one server. Whatever it answers is bounded.
type remote struct {
	base   string // without a slash at the end
	client *http.Client
	agent  string
}

// get returns the body under a path, of no more than limit bytes.
func (r *remote) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	body, response, err := r.ask(ctx, r.base+path, "", limit)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s%s: %w", r.base, path, errNotThere)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s%s: the server answered %s%s", r.base, path, response.Status, excerpt(response, body))
	case int64(len(body)) > limit:
		return nil, differs("%s%s has over %d bytes", r.base, path, limit)
	}
	return body, nil
}

// ask returns an answer and its body, cut after limit and one more bytes. With an
// accepted coding the body is as it came; without, as the client likes.
func (r *remote) ask(ctx context.Context, url, accept string, limit int64) ([]byte, *http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("User-Agent", r.agent)
	if accept != "" {
		request.Header.Set("Accept-Encoding", accept)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", url, err)
	}
	return body, response, nil
}

// excerpt is what a server says in an answer that is no success, as far as it can be
// shown to a person.
func excerpt(response *http.Response, body []byte) string {
	const most = 300
	contentType := response.Header.Get("Content-Type")
	if len(body) == 0 || !strings.HasPrefix(contentType, "application/json") && !strings.HasPrefix(contentType, "text/plain") {
		return ""
	}
	return fmt.Sprintf(": %.*q", most, body)
}
