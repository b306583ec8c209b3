package waitingroom

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestRequestsThatAreNoPageViews: a full room never answers them with a success status, whoever sends them.
func TestRequestsThatAreNoPageViews(t *testing.T) {
	t.Parallel()
	h := open(t, small(1))
	if !h.user().get("/").in() {
		t.Fatal("the room is empty, but the user waits")
	}
	ticket := h.user()
	ticket.get("/") // from now on it has a ticket that waits
	for _, u := range []*user{h.user(), ticket} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "QUERY", "CONNECT", "PROPFIND"} {
			for _, accept := range []string{"", "text/html", "application/json", "*/*"} {
				req, err := http.NewRequest(method, u.url+"/order", strings.NewReader("a=1"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Accept", accept)
				if method == "CONNECT" {
					req.Body, req.ContentLength = nil, 0
				}
				r := u.send(req)
				if r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" || r.Header.Get("Refresh") != "" ||
					!strings.Contains(r.body, "This "+method+" request was not carried out.") {
					t.Errorf("%s, Accept %q: %d, %v, %q", method, accept, r.StatusCode, r.Header, r.body)
				}
			}
		}
	}
	h.pass(time.Minute)
}

// TestSeveralTickets: of the tickets of one request, which browsers keep by path and partition, the admitted one counts.
func TestSeveralTickets(t *testing.T) {
	t.Parallel()
	h := open(t, small(1))
	inside, waits := h.user(), h.user()
	if !inside.get("/").in() || waits.get("/").in() {
		t.Fatal("the room has to take one user")
	}
	both := waits.cookie() + "; " + cookieName("") + "=" + inside.cookie()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		req, err := http.NewRequest(method, h.url+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", cookieName("")+"="+both)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Refresh") != "" {
			t.Errorf("%s: %d, %v", method, resp.StatusCode, resp.Header)
		}
	}
	// A session that is over does not hide a ticket that waits.
	h.pass(10 * time.Minute)
	m := h.rooms.currentRooms().byName["shop"]
	got, known, passes := m.findTicket(http.Header{"Cookie": {cookieName("") + "=" + inside.cookie() + "; " + cookieName("") + "=" + waits.cookie()}}, h.Now(), m.settingsAt(h.Now()))
	if !known || passes || !got.Waiting() {
		t.Errorf("%+v, %v, %v", got, known, passes)
	}
}
