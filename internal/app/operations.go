package app

import (
	"context"
	"errors"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
)

// Requests to the bot.
type (
	// AddRequest names a release.
	AddRequest struct {
		Package string `json:"package"`
		Version string `json:"version,omitempty"` // "" for the newest releases, as for a new package
		// Retry asks, where Version is "", for all releases that were refused or have failed.
		Retry bool `json:"retry,omitempty"`
		// Override is why Version is published although it does not satisfy the policy of its package.
		Override string `json:"override,omitempty"`
	}
)

// Operations that look for libraries.
const (
	OpSearch   Operation[library.SearchRequest, any, library.Found]          = "search"
	OpInfo     Operation[library.InfoRequest, any, library.Info]             = "info"
	OpSnippets Operation[library.SnippetRequest, any, []library.FileSnippet] = "snippets"
)

// Operations of the bot's.
const (
	OpAdd Operation[AddRequest, bot.Event, Written] = "add"
	// OpImportTree is asked with absolute paths.
	OpImportTree Operation[bot.Tree, bot.TreeEvent, bot.TreeSummary] = "import-tree"
	OpSqueeze    Operation[struct{}, bot.Event, bot.SqueezeSummary]  = "squeeze"
)

// Operations about the log's key. OpUnsigned is answered with why the log's newest entries are not signed, and what to do, or "".
const (
	OpUnsigned  Operation[struct{}, any, string]   = "unsigned"
	OpRotateKey Operation[struct{}, any, Rotation] = "rotate-key"
)

// operations are those that read; those about the outbox write where the folder allows it.
func (r *Reader) operations() operations {
	all := operations{}
	directory := library.Directory{Store: r.store, Index: r.libraries.get, AssetBase: r.assetBase, Documents: library.Documents{Imports: r.imports, Ranges: r.ranges}}
	answer(all, OpStatus, func(_ context.Context, q StatusRequest, _ func(any)) (*Status, error) { return r.status(q.Package) })
	answer(all, OpSearch, func(ctx context.Context, q library.SearchRequest, _ func(any)) (library.Found, error) {
		return directory.Search(ctx, q)
	})
	answer(all, OpInfo, func(ctx context.Context, q library.InfoRequest, _ func(any)) (library.Info, error) {
		return directory.Info(ctx, q)
	})
	answer(all, OpSnippets, func(ctx context.Context, q library.SnippetRequest, _ func(any)) ([]library.FileSnippet, error) {
		return directory.Snippets(ctx, q)
	})
	answer(all, OpBackup, func(ctx context.Context, q BackupRequest, report func(BackupProgress)) (BackupResult, error) {
		return r.backup(ctx, q.Dir, report)
	})
	answer(all, OpBundle, r.bundle)
	answer(all, OpNodes, noNodes)
	noRooms(all)
	r.fsckOperations(all)
	r.logOperations(all)
	r.outboxOperations(all)
	return all
}

// operations are a reader's, and those that write.
func (w *Writer) operations() operations {
	all := w.folder.operations()
	withBot := func(ctx context.Context, report func(bot.Event), do func(context.Context, *bot.Bot) error) error {
		f, err := w.filler.get()
		if err != nil {
			return err
		}
		return do(bot.WithReport(ctx, report), f.bot)
	}
	answer(all, OpAdd, func(ctx context.Context, q AddRequest, report func(bot.Event)) (Written, error) {
		err := withBot(ctx, report, func(ctx context.Context, b *bot.Bot) error {
			if q.Retry && q.Version == "" {
				return b.Retry(ctx, q.Package)
			}
			if q.Override != "" {
				return b.AddUnattested(ctx, q.Package, q.Version, q.Override)
			}
			return b.Add(ctx, q.Package, q.Version)
		})
		return w.written(), err
	})
	answer(all, OpImportTree, func(ctx context.Context, q bot.Tree, report func(bot.TreeEvent)) (sum bot.TreeSummary, err error) {
		err = withBot(ctx, func(bot.Event) {}, func(ctx context.Context, b *bot.Bot) (err error) {
			sum, err = b.ImportTree(ctx, q, report)
			return err
		})
		return sum, err
	})
	w.importOperations(all)
	answer(all, OpSqueeze, func(ctx context.Context, _ struct{}, report func(bot.Event)) (squeezed bot.SqueezeSummary, err error) {
		err = withBot(ctx, report, func(ctx context.Context, b *bot.Bot) (err error) {
			squeezed, err = b.Squeeze(ctx)
			return err
		})
		return squeezed, err
	})
	answer(all, OpUnsigned, func(context.Context, struct{}, func(any)) (string, error) { return w.signature.problem(), nil })
	answer(all, OpRotateKey, func(context.Context, struct{}, func(any)) (Rotation, error) { return w.signature.rotate() })
	// Without a process that serves, the log is in force at once.
	withdrawals{w, func(context.Context) error { return nil }, false}.operations(all)
	return all
}

// leaderOperations are those of a writer, as far as a process that runs does not answer them otherwise.
func (r *roleRun) leaderOperations(w *Writer) operations {
	all := w.operations()
	signature := &w.signature
	r.console.addStatus(func(status *Status) { status.Unsigned, status.Disputes = signature.problem(), signature.disputes() })
	answer(all, OpKeyFolder, func(context.Context, struct{}, func(any)) (string, error) { return signature.signer.Folder(), nil })
	answer(all, OpBackup, func(ctx context.Context, q BackupRequest, report func(BackupProgress)) (BackupResult, error) {
		done, err := w.folder.backup(ctx, q.Dir, report)
		done.Keys = signature.signer.Folder()
		return done, throughProcess(&r.self, err)
	})
	answer(all, OpBundle, func(ctx context.Context, q BundleRequest, report func(BundleProgress)) (replication.BundleResult, error) {
		done, err := w.folder.bundle(ctx, q, report)
		return done, throughProcess(&r.self, err)
	})
	r.addRepairInPlace(all, w.folder)
	return r.withConsole(all, w.folder)
}

// withConsole adds what the parts of the role answer, and their status.
func (r *roleRun) withConsole(all operations, folder *Reader) operations {
	answer(all, OpStatus, func(_ context.Context, q StatusRequest, _ func(any)) (*Status, error) {
		status, err := folder.status(q.Package)
		if err != nil {
			return nil, err
		}
		status.Process = &r.self
		for _, add := range r.console.status {
			add(status)
		}
		return status, nil
	})
	for _, add := range r.console.operations {
		add(all)
	}
	return all
}

// refusing puts why into the place of what would write.
func refusing(all operations, why error) operations {
	for _, name := range []string{string(OpAdd), string(opMissingContents), string(opImport), string(OpImportTree), string(OpSqueeze), string(OpRepair), string(OpRotateKey), string(OpWithdraw), string(OpRestore),
		string(OpScheduleAdd), string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookRemove)} {
		all[name] = func(context.Context, admin.Request, func(any)) (any, error) { return nil, why }
	}
	return all
}

// An Operation is what a command can request from a process: it has types for the request, the events on the way, and the response.
// The string is its name on the admin socket.
type Operation[Request, Event, Answer any] string

// Ask sends the request to a process, calls report, which may be nil, with each event, and returns the response.
func (o Operation[Request, Event, Answer]) Ask(ctx context.Context, c *Client, request Request, report func(Event)) (Answer, error) {
	return admin.Call[Answer](ctx, c.client, string(o), request, report)
}

// operations are what a process can be asked, by name.
type operations map[string]admin.Operation

// answer adds an operation, or puts another one in its place.
func answer[Request, Event, Answer any](all operations, o Operation[Request, Event, Answer], do func(context.Context, Request, func(Event)) (Answer, error)) {
	all[string(o)] = admin.Typed(func(ctx context.Context, request Request, report func(any)) (any, error) {
		return do(ctx, request, func(e Event) { report(e) })
	})
}

// counted has the folder stay open while one of the operations is under way.
func (r *Reader) counted(all operations) map[string]admin.Operation {
	counted := make(map[string]admin.Operation, len(all))
	for name, operation := range all {
		counted[name] = func(ctx context.Context, request admin.Request, report func(any)) (any, error) {
			r.busy.Add(1)
			defer r.busy.Done()
			return operation(ctx, request, report)
		}
	}
	return counted
}

// A Client asks operations of the process that has a data folder open.
type Client struct {
	client *admin.Client
	stop   func() error
}

// ErrNoProcess is what Dial returns where no process runs.
var ErrNoProcess = admin.ErrNoProcess

// Dial returns a client of the process that runs on a data folder.
func Dial(ctx context.Context, data string) (*Client, error) {
	client, err := admin.Dial(ctx, data)
	if err != nil {
		return nil, err
	}
	return &Client{client, func() error { return nil }}, nil
}

// Client returns a client of the reader itself, which closes it.
func (r *Reader) Client() *Client { return r.client(r.operations(), r.Close) }

// Client returns a client of the writer itself, which closes it.
func (w *Writer) Client() *Client { return w.folder.client(w.operations(), w.Close) }

func (r *Reader) client(all operations, closeFolder func() error) *Client {
	client, stop := admin.InProcess(admin.Handler(r.counted(all), r.logger))
	return &Client{client, func() error { return errors.Join(stop(), closeFolder()) }}
}

// Close ends the client, and closes the folder where that is of this process.
func (c *Client) Close() error { return c.stop() }

// FsckRequest says what `larder fsck` compares the folder with.
type FsckRequest struct {
	Deep bool            `json:"deep,omitempty"`
	All  bool            `json:"all,omitempty"`
	Keys string          `json:"keys"` // used unless the process signs
	Seen logs.Checkpoint `json:"seen"`
}

// FsckEvent is sent while a check runs; one of its members is there.
type FsckEvent struct {
	Finding  *check.Finding  `json:"finding,omitempty"`
	Progress *check.Progress `json:"progress,omitempty"`
}

// Operations of `larder fsck`.
const (
	OpFsck      Operation[FsckRequest, FsckEvent, check.Summary] = "fsck"
	OpKeyFolder Operation[struct{}, any, string]                 = "key-folder" // "" if the process does not sign
)

func (r *Reader) fsckOperations(all operations) {
	answer(all, OpFsck, func(ctx context.Context, q FsckRequest, report func(FsckEvent)) (check.Summary, error) {
		o := r.fsckOptions(report)
		o.Deep, o.All, o.Record, o.Keys, o.Seen = q.Deep, q.All, true, q.Keys, q.Seen
		return check.Run(ctx, r.store, o, func(finding check.Finding) { report(FsckEvent{Finding: &finding}) })
	})
	answer(all, OpKeyFolder, func(context.Context, struct{}, func(any)) (string, error) { return "", nil })
}

func (r *Reader) fsckOptions(report func(FsckEvent)) check.Options {
	return check.Options{Temp: tmpDir(r.settings.Data), Workers: r.workers, Progress: func(p check.Progress) { report(FsckEvent{Progress: &p}) }}
}
