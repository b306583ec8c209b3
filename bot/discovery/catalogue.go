package discovery

import (
	"bytes"
	"context"
	"fmt"

	"github.com/larder-cdn/larder/packages"
)

// SetCatalogue has another catalogue count from now on: what is new in it is
// enrolled, what has changed applies to releases that are begun from now on, and what
// is gone is not updated any more. A package whose file is refused stays what it was.
func (sc *Scheduler) SetCatalogue(ctx context.Context, c *packages.Catalogue) error {
	sc.adopting.Lock()
	defer sc.adopting.Unlock()
	before := sc.options.Publisher.Catalogue()
	c = c.Keeping(sc.options.Publisher.LastGood)
	if err := sc.options.Publisher.Adopt(ctx, c); err != nil {
		return err
	}
	if err := sc.options.Records.AdoptPopularity(c); err != nil {
		return err
	}
	sc.options.Publisher.UseCatalogue(c)
	for _, p := range c.Packages() {
		if old, ok := before.Get(p.Name); !ok || !bytes.Equal(old.JSON, p.JSON) {
			if err := sc.agenda.set(ctx, p.Name, sc.options.Records.Known(p.Name).Next); err != nil {
				return fmt.Errorf("bot: couldn't put %s on the agenda: %w", p.Name, err)
			}
		}
	}
	return nil
}

// adoptFirst adopts the catalogue that the bot was made with.
func (sc *Scheduler) adoptFirst(ctx context.Context) error {
	c := sc.options.Publisher.CurrentCatalogue()
	if c == nil {
		return nil
	}
	return sc.SetCatalogue(ctx, c)
}
