package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
)

// A LossError lists the entries of the log that no source has. Nothing was replaced.
type LossError struct {
	Entries []logs.Range // the entries that are missing; none where others are in their place
	Size    int64        // how many were signed
	Problem error        // why the sources could not supply the entries
}

// Error returns which entries are lost, and what the operator can do.
func (e *LossError) Error() string {
	text := fmt.Sprintf("the damaged store has other log entries than the %d that were signed, and no source has those", e.Size)
	if len(e.Entries) > 0 {
		var ranges []string
		for _, r := range e.Entries {
			ranges = append(ranges, r.String())
		}
		text = fmt.Sprintf("the log %s were signed, and no source has them", strings.Join(ranges, ", "))
	}
	if e.Problem != nil && !errors.Is(e.Problem, fs.ErrNotExist) {
		text += " (" + oneLine(e.Problem) + ")"
	}
	return text + "; nothing was replaced; if another Larder of this log, a backup or the bucket of a cluster has them, use `larder repair` with --from URL, --from DIR or --from bucket; --accept-loss continues without them, as another log"
}

func (e *LossError) Unwrap() error { return e.Problem }

// lossError returns the [*LossError] for signed entries that no source has: those that the damaged store lacks, which it also reports as findings, or
// all if there is none. problems are why the attempts failed.
func (e *engine) lossError(problems []error) error {
	missing := []logs.Range{{From: 0, To: e.signed.Size}}
	if e.damaged != nil {
		missing = nil
		for index := range e.signed.Size {
			if e.damaged.tree.entry(index) != nil {
				continue
			}
			if n := len(missing); n > 0 && missing[n-1].To == index {
				missing[n-1].To++
			} else {
				missing = append(missing, logs.Range{From: index, To: index + 1})
			}
			e.addFinding(Finding{Kind: Log, Where: fmt.Sprintf("entry %d", index), Problem: "it was signed, and is in no file of the damaged store"})
		}
	}
	return &LossError{missing, e.signed.Size, errors.Join(problems...)}
}

var errOtherLog = errors.New("what it has there are not the entries that were signed")

// sourceOrders returns the orders in which sources are tried for the log: all of them together, and each alone, because one of the others may lie.
// The damaged store precedes the others in some of them.
func (e *engine) sourceOrders() (orders [][]Source) {
	others := e.RepairOptions.Sources
	damaged := e.sources[:len(e.sources)-len(others)]
	if len(e.sources) > 0 {
		orders = append(orders, e.sources)
	}
	if len(others) > 1 {
		for _, s := range others {
			orders = append(orders, append(slices.Clone(damaged), s))
		}
	}
	if len(damaged) > 0 {
		for _, s := range others {
			orders = append(orders, []Source{s})
		}
	}
	return orders
}

// namesOf returns the names of sources, separated by commas, for messages.
func namesOf(order []Source) string {
	var names []string
	for _, s := range order {
		names = append(names, s.Name())
	}
	return strings.Join(names, ", ")
}

// nextEntries returns some consecutive entries from index on, none of them at end or after, from the first source in order that has the one at index.
// They are parsed, not verified. If no source has it, the error says why for each. If a source fails in another way than by not having it, e.unsure
// records the first such error.
func (e *engine) nextEntries(ctx context.Context, order []Source, index, end int64) (Source, []logs.Indexed, error) {
	var problems []error
	for _, s := range order {
		raw, err := replication.ReadEntries(ctx, s, index)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		var batch []logs.Indexed
		for i := range raw[:min(int64(len(raw)), end-index)] {
			var entry logs.Indexed
			if entry, err = logs.ParseEntry(index+int64(i), raw[i]); err != nil {
				break
			}
			batch = append(batch, entry)
		}
		if len(batch) > 0 {
			return s, batch, nil
		}
		if err == nil {
			err = fs.ErrNotExist
		}
		if !errors.Is(err, fs.ErrNotExist) && e.unsure == nil {
			e.unsure = fmt.Errorf("%s: %w", s.Name(), err)
		}
		problems = append(problems, fmt.Errorf("%s: %w", s.Name(), err))
	}
	if problems == nil {
		problems = append(problems, errNoSource)
	}
	return nil, nil, errors.Join(problems...)
}
