package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/logs/views"
)

// The operations that commands ask for, of the process that runs or of themselves. Their requests:
type (
	addRequest struct {
		Package string `json:"package"`
		Version string `json:"version,omitempty"` // "" for the newest releases, as for a new package
	}
	importRequest struct {
		Package string `json:"package"`
		Version string `json:"version"`
		Source  string `json:"source"` // an absolute path
	}
	statusRequest struct {
		Package string `json:"package,omitempty"` // "" for all
	}
	squeezeRequest struct{}
	checkRequest   struct {
		Deep bool `json:"deep,omitempty"`
	}
)

// checkEvent is what `larder fsck` is told on the way; one of its members is there.
type checkEvent struct {
	Finding  *views.Finding `json:"finding,omitempty"`
	Progress *checkProgress `json:"progress,omitempty"`
}

type checkProgress struct {
	Entries int64 `json:"entries"`
	Of      int64 `json:"of"`
	Decoded int64 `json:"decoded,omitempty"` // bytes of files
}

// operations returns what can be asked of the process that has the folder open. process describes it, or is nil
// where that is the command itself; assetBase is what it puts in front of the addresses of files, "" where that is not
// known.
func (f *folder) operations(process *process, assetBase string) map[string]admin.Operation {
	withBot := func(ctx context.Context, report func(any), do func(context.Context, *bot.Bot) error) error {
		b, err := f.bot()
		if err != nil {
			return err
		}
		return do(bot.WithReport(ctx, func(e bot.Event) { report(e) }), b)
	}
	operations := map[string]admin.Operation{
		"add": admin.Typed(func(ctx context.Context, r addRequest, report func(any)) (any, error) {
			return nil, withBot(ctx, report, func(ctx context.Context, b *bot.Bot) error {
				return b.Add(ctx, r.Package, r.Version)
			})
		}),
		"import": admin.Typed(func(ctx context.Context, r importRequest, report func(any)) (any, error) {
			return nil, withBot(ctx, report, func(ctx context.Context, b *bot.Bot) error {
				return b.Import(ctx, r.Package, r.Version, r.Source)
			})
		}),
		"squeeze": admin.Typed(func(ctx context.Context, _ squeezeRequest, report func(any)) (any, error) {
			var squeezed bot.SqueezeSummary
			err := withBot(ctx, report, func(ctx context.Context, b *bot.Bot) (err error) {
				squeezed, err = b.Squeeze(ctx)
				return err
			})
			return squeezed, err
		}),
		"status": admin.Typed(func(_ context.Context, r statusRequest, _ func(any)) (any, error) {
			return f.status(process, r.Package)
		}),
		"search": admin.Typed(func(ctx context.Context, r searchRequest, _ func(any)) (any, error) {
			return f.search(ctx, r, assetBase)
		}),
		"info": admin.Typed(func(ctx context.Context, r infoRequest, _ func(any)) (any, error) {
			return f.info(ctx, r, assetBase)
		}),
		"snippets": admin.Typed(func(ctx context.Context, r snippetRequest, _ func(any)) (any, error) {
			return f.snippets(ctx, r, assetBase)
		}),
		"withdraw": admin.Typed(func(ctx context.Context, r withdrawRequest, _ func(any)) (any, error) {
			return f.withdraw(ctx, r, assetBase)
		}),
		"restore": admin.Typed(func(ctx context.Context, r restoreRequest, _ func(any)) (any, error) {
			return f.restore(ctx, r, assetBase)
		}),
		"unsigned": admin.Typed(func(context.Context, unsignedRequest, func(any)) (any, error) {
			return f.whyUnsigned(), nil
		}),
		"rotate-key": admin.Typed(func(context.Context, rotateRequest, func(any)) (any, error) {
			return f.rotateKey()
		}),
		"fsck": admin.Typed(func(ctx context.Context, r checkRequest, report func(any)) (any, error) {
			return f.check(ctx, r.Deep, report)
		}),
		"compare": admin.Typed(func(ctx context.Context, _ compareRequest, report func(any)) (any, error) {
			return f.rebuild(ctx, true, report)
		}),
		"backup": admin.Typed(func(ctx context.Context, r backupRequest, report func(any)) (any, error) {
			done, err := f.backup(ctx, r.Dir, report)
			return done, throughProcess(process, err)
		}),
	}
	maps.Copy(operations, f.logOperations())
	maps.Copy(operations, f.auditOperations())
	maps.Copy(operations, f.roomOperations())
	maps.Copy(operations, f.webhookOperations())
	maps.Copy(operations, f.scheduleOperations())
	for name, operation := range operations {
		operations[name] = func(ctx context.Context, request json.RawMessage, report func(any)) (any, error) {
			f.busy.Add(1)
			defer f.busy.Done()
			return operation(ctx, request, report)
		}
	}
	return operations
}

func (f *folder) check(ctx context.Context, deep bool, report func(any)) (summary views.CheckSummary, err error) {
	scratch, remove, err := f.scratch("fsck-")
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return views.Check(ctx, f.store, f.checkOptions(deep, scratch, report),
		func(finding views.Finding) { report(checkEvent{Finding: &finding}) })
}

// scratch makes a folder for a second set of views; remove takes it away.
func (f *folder) scratch(prefix string) (dir string, remove func() error, err error) {
	if err := os.MkdirAll(f.tmp(), 0o700); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(f.tmp(), prefix)
	if err != nil {
		return "", nil, fmt.Errorf("couldn't make room for a second set of views to compare with: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// progressEvery is how many entries there are between two events; a finding is told at once.
const progressEvery = 256

// checkProgressTo returns what tells how much of the log has been read, now and then.
func checkProgressTo(report func(any)) func(entries, of int64) {
	return func(entries, of int64) {
		if entries%progressEvery == 0 || entries == of {
			report(checkEvent{Progress: &checkProgress{Entries: entries, Of: of}})
		}
	}
}
