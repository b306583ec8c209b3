package bot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// An Upstream is what the bot remembers of a package's upstream.
type Upstream struct {
	Package    string           `json:"package"`
	Source     string           `json:"source,omitempty"`    // "npm" or "git"; "" in old rows is npm
	Target     string           `json:"target,omitempty"`    // its name or address there
	Validators fetch.Validators `json:"validators,omitzero"` // of the last answer that was taken in whole
	// Seen are the versions that upstream ever had. What is not among them later
	// has appeared since, whatever its time says: mirrors make up times.
	Seen     []string  `json:"seen,omitempty"`
	Checked  time.Time `json:"checked"`
	Next     time.Time `json:"next"`               // when it is asked again
	Attempts int       `json:"attempts,omitempty"` // in a row that failed
	Reason   string    `json:"reason,omitempty"`   // why the last one failed
	// Notes are what people should know of the target, such as that it has moved.
	Notes []string `json:"notes,omitempty"`
}

// LookupUpstream returns what is remembered of a package's upstream, or
// kvstore.ErrNotFound.
func LookupUpstream(r kvstore.Reader, pkg string) (Upstream, error) {
	data, err := r.Get(kvstore.Upstreams, kvstore.Key(pkg))
	if err != nil {
		return Upstream{}, err
	}
	var u Upstream
	if err := json.Unmarshal(data, &u); err != nil {
		return Upstream{}, fmt.Errorf("bot: what is known of %s's upstream is malformed: %w", pkg, err)
	}
	return u, nil
}

// knownUpstream is LookupUpstream with the zero value for an unknown one. What
// is remembered only saves a request, so a row that cannot be read is forgotten.
func (b *Bot) knownUpstream(pkg string) Upstream {
	u, err := LookupUpstream(b.store, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		b.logger.Warn("upstream row ignored", "package", pkg, "err", err)
	}
	u.Package = pkg
	return u
}

// follows reports whether u is about what a package's JSON names now.
func (u Upstream) follows(p *packages.Package) bool {
	return p.Autoupdate != nil && p.Autoupdate.Target == u.Target && p.Autoupdate.Source == cmp.Or(u.Source, npmType)
}

// due returns when the upstream is to be asked again. Next was written down under the interval
// of that time; one that is shorter now brings it forward, unless it waits for another reason.
func (u Upstream) due(interval time.Duration) time.Time {
	if longest := u.Checked.Add(interval + interval/10); u.Attempts == 0 && longest.Before(u.Next) {
		return longest
	}
	return u.Next
}

func setUpstream(batch *kvstore.Batch, u Upstream) error {
	data, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch.Set(kvstore.Upstreams, kvstore.Key(u.Package), data)
	return nil
}
