package demand

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// rowFormat is the version of the row's format.
const rowFormat = 1

// negligible is the score below which a package is not written any more: a single
// request is forgotten after half a year.
const negligible = 1.0 / 64

// key is the row in the Meta namespace. It is no view: the log cannot explain it.
var key = kvstore.Key("demand")

type row struct {
	Format   int                `json:"format"`
	At       time.Time          `json:"at"` // when the scores are from
	Packages map[string]float64 `json:"packages"`
}

// load reads the scores and when they are from. There may be none.
func load(store *kvstore.Store) (map[string]float64, time.Time, error) {
	value, err := store.Get(kvstore.Meta, key)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return decode(value)
}

func decode(value []byte) (map[string]float64, time.Time, error) {
	var r row
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, time.Time{}, fmt.Errorf("the row of demand is damaged: %w", err)
	}
	if r.Format != rowFormat {
		return nil, time.Time{}, fmt.Errorf("the row of demand has the format %d, and this larder reads %d", r.Format, rowFormat)
	}
	for name, score := range r.Packages {
		if score < negligible {
			delete(r.Packages, name)
		}
	}
	return r.Packages, r.At, nil
}

func save(store *kvstore.Store, scores map[string]float64, at time.Time) error {
	value, err := json.Marshal(row{rowFormat, at.UTC(), scores})
	if err != nil {
		return fmt.Errorf("couldn't encode the row of demand: %w", err)
	}
	batch := store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Meta, key, value)
	return batch.Commit()
}
