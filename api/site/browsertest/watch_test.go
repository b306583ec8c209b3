package browsertest

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestWatch makes sure that a tab notices what the stories rely on it to notice.
func TestWatch(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	site := elsewhere(t, `<meta http-equiv="Content-Security-Policy" content="style-src 'none'"><p style="color: red">Red?</p>
<script>console.error("a complaint"); fetch("`+other.URL+`/away", {mode: "no-cors"}).finally(() => { window.asked = true; nowhere() })</script>`)
	b.allow(site.URL)
	b.visit(site.URL + "/")
	b.until("window.asked")
	for _, complaint := range []string{"a complaint", "content security policy", "nowhere is not defined"} {
		b.wait(complaint, func() bool { return b.complained(complaint) })
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.foreign) != 1 || b.foreign[0] != other.URL+"/away" {
		t.Errorf("requests to others: %q", b.foreign)
	}
	b.foreign, b.complaints = nil, nil // as they should be
}
