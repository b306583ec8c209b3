package discovery

import (
	"bytes"
	"context"
	"fmt"

	"github.com/larder-cdn/larder/packages"
)

// SetCatalogue replaces the catalogue by c. It registers new packages, stores the download counts that c has, schedules polls for
// new and changed packages, and stops polling packages that are gone. Changes apply to releases that start from now on. A package
// whose file in c is invalid keeps its last valid JSON. A call waits while another one runs. After an error, what was recorded
// before stays, and the catalogue in use is the old one unless only scheduling failed.
func (sc *Scheduler) SetCatalogue(ctx context.Context, c *packages.Catalogue) error {
	sc.adopting.Lock()
	defer sc.adopting.Unlock()
	before := sc.options.Publisher.Catalogue()
	c = c.Keeping(sc.options.Publisher.LastValidPackage)
	if err := sc.options.Publisher.RegisterCatalogue(ctx, c); err != nil {
		return err
	}
	if err := sc.options.Records.StorePopularity(c); err != nil {
		return err
	}
	sc.options.Publisher.UseCatalogue(c)
	for _, p := range c.Packages() {
		if old, ok := before.Get(p.Name); !ok || !bytes.Equal(old.JSON, p.JSON) {
			if err := sc.schedule.set(ctx, p.Name, sc.options.Records.Known(p.Name).Next); err != nil {
				return fmt.Errorf("bot: couldn't schedule %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// applyCatalogue registers and schedules the packages of the catalogue that the publisher has at the start, by SetCatalogue. It
// does nothing if the publisher has no catalogue yet.
func (sc *Scheduler) applyCatalogue(ctx context.Context) error {
	c := sc.options.Publisher.CurrentCatalogue()
	if c == nil {
		return nil
	}
	return sc.SetCatalogue(ctx, c)
}
