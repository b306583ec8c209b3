package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
)

// AddRequest names a release that the bot publishes now.
type AddRequest struct {
	Package string `json:"package"` // its name in the catalogue
	// NPM is the name of an npm package, by which the package is found if the catalogue has none with the name Package; ""
	// for no such search.
	NPM     string `json:"npm,omitempty"`
	Version string `json:"version,omitempty"` // "" for the newest releases, as for a new package
	// Retry requests, if Version is "", all releases that were refused or have failed.
	Retry bool `json:"retry,omitempty"`
	// Override is why Version is published although it does not satisfy the policy of its package; "" if it has to.
	Override string `json:"override,omitempty"`
}

// Operations that look for libraries.
const (
	OpSearch   Operation[library.SearchRequest, any, library.Found]          = "search"
	OpInfo     Operation[library.InfoRequest, any, library.Info]             = "info"
	OpSnippets Operation[library.SnippetRequest, any, []library.FileSnippet] = "snippets"
	OpModules  Operation[library.ModulesRequest, any, *library.Graph]        = "modules"
	OpLocate   Operation[library.LocateRequest, any, []library.Located]      = "locate"
)

// Operations of the bot's.
const (
	OpAdd Operation[AddRequest, sources.Event, Written] = "add"
	// OpImportTree publishes the releases in a folder, which the process reads: the paths in the request are absolute.
	OpImportTree Operation[ingest.Tree, ingest.TreeEvent, ingest.TreeSummary] = "import-tree"
	OpSqueeze    Operation[struct{}, sources.Event, recompression.Summary]    = "squeeze"
)

// Operations about the log's key. OpUnsigned returns why the log's newest entries are not signed, and what to do, "" if nothing is
// wrong. OpRotateKey replaces the key.
const (
	OpUnsigned  Operation[struct{}, any, string]   = "unsigned"
	OpRotateKey Operation[struct{}, any, Rotation] = "rotate-key"
)

// operations returns the operations that an open folder has without a running process: reading, checks, backups and bundles.
// Those on schedules and webhooks also write if the folder is open for writing. Those on nodes and waiting rooms, which only a
// running process has, return errors.
func (r *Reader) operations() operations {
	all := operations{}
	directory := library.Directory{Store: r.store, Index: r.libraries.get, AssetBase: r.assetBase, Dictionaries: r.settings.Dictionaries, Advisories: sync.OnceValue(r.storedAdvisories), Documents: r.pages.renderer.DocumentsNow()}
	addRequest(all, OpStatus, func(_ context.Context, q StatusRequest) (*Status, error) { return r.readStatus(q.Package) })
	addRequest(all, OpSearch, directory.Search)
	addRequest(all, OpInfo, directory.Info)
	addRequest(all, OpSnippets, directory.Snippets)
	addRequest(all, OpModules, directory.Modules)
	addRequest(all, OpLocate, directory.Locate)
	addOperation(all, OpBackup, r.backUp)
	addOperation(all, OpBundle, r.writeBundle)
	addRequest(all, OpDoctor, r.examineFolder)
	refuse(all, errors.New("no node of a cluster runs on this data folder; `larder up --bucket` starts one"), string(OpNodes))
	refuse(all, errors.New("no larder process serves waiting rooms on this data folder; `larder up` and `larder serve` do"),
		string(OpRooms), string(OpSetRoom), string(OpApplyRooms), string(OpUndoRooms), string(OpRoomHistory))
	r.addFsckOperations(all)
	r.addLogOperations(all)
	r.addOutboxOperations(all)
	return all
}

// operations returns the operations of [Reader.operations] and those that write: publish, import, recompress (squeeze), withdraw,
// restore and replace the log's key. One more returns why the newest entries are not signed.
func (w *Writer) operations() operations {
	all := w.folder.operations()
	addOperation(all, OpAdd, func(ctx context.Context, q AddRequest, report func(sources.Event)) (Written, error) {
		_, err := useBot(ctx, w, report, func(ctx context.Context, b *bot.Bot) (any, error) {
			if _, named := b.Catalogue().Get(q.Package); !named && q.NPM != "" {
				if p, ok := b.Catalogue().FindNPM(q.NPM); ok {
					q.Package = p.Name
				}
			}
			if q.Retry && q.Version == "" {
				return nil, b.Retry(ctx, q.Package)
			}
			if q.Override != "" {
				return nil, b.AddUnattested(ctx, q.Package, q.Version, q.Override)
			}
			return nil, b.Add(ctx, q.Package, q.Version)
		})
		return w.newWritten(), err
	})
	addOperation(all, OpImportTree, func(ctx context.Context, q ingest.Tree, report func(ingest.TreeEvent)) (ingest.TreeSummary, error) {
		return useBot(ctx, w, func(sources.Event) {}, func(ctx context.Context, b *bot.Bot) (ingest.TreeSummary, error) {
			return b.ImportTree(ctx, q, report)
		})
	})
	w.addImportOperations(all)
	addOperation(all, OpSqueeze, func(ctx context.Context, _ struct{}, report func(sources.Event)) (recompression.Summary, error) {
		return useBot(ctx, w, report, func(ctx context.Context, b *bot.Bot) (recompression.Summary, error) { return b.RecompressAll(ctx) })
	})
	addRequest(all, OpUnsigned, func(context.Context, struct{}) (string, error) { return w.signature.problem(), nil })
	addRequest(all, OpRotateKey, func(context.Context, struct{}) (Rotation, error) { return w.signature.rotateKey() })
	// Without a process that serves, withdrawals are in force at once.
	withdrawals{w, func(context.Context) error { return nil }, false}.addOperations(all)
	return all
}

// useBot opens the bot of w if it is not open, and calls do with it, and with a context whose events report receives.
func useBot[Answer any](
	ctx context.Context, w *Writer, report func(sources.Event), do func(context.Context, *bot.Bot) (Answer, error),
) (none Answer, err error) {
	f, err := w.filler.get()
	if err != nil {
		return none, err
	}
	return do(sources.WithReport(ctx, report), f.bot)
}

// publishingOperations returns the operations of a process that publishes: those of the Writer, the status of the process, its
// key folder, and backups, bundles and repair as this process makes them. A backup signs the newest entries before, and fails
// if that fails. publishingOperations also adds the state of the log's signatures to the status and to `larder doctor`.
func (r *roleRun) publishingOperations(w *Writer) operations {
	all := w.operations()
	signature := &w.signature
	r.console.addStatus(func(status *Status) { status.Unsigned, status.Disputes = signature.problem(), signature.disputes() })
	r.console.addExamination(func(_ context.Context, e *examination) {
		for _, silent := range signature.signer.SilentWitnesses() {
			e.report("witness", e.command("reload")+" # after correcting witness; or ask its operator", "a witness does not cosign: "+silent)
		}
	})
	addRequest(all, OpKeyFolder, func(context.Context, struct{}) (string, error) { return signature.signer.Folder(), nil })
	addOperation(all, OpBackup, func(ctx context.Context, q BackupRequest, report func(EntryProgress)) (BackupResult, error) {
		if err := signature.signer.Sign(); err != nil { // a backup has what is signed
			return BackupResult{}, err
		}
		done, err := w.folder.backUp(ctx, q, report)
		return done, explainPermission(&r.self, err)
	})
	addOperation(all, OpBundle, func(ctx context.Context, q BundleRequest, report func(EntryProgress)) (replication.BundleResult, error) {
		done, err := w.folder.writeBundle(ctx, q, report)
		return done, explainPermission(&r.self, err)
	})
	r.addRepairInPlace(all, w.folder)
	return r.addConsole(all, w.folder)
}

// addConsole adds to the operations in all those that the parts of the role have registered, the status of the process, and the
// examination of the process for `larder doctor`. Both read folder. It changes all, and returns it.
func (r *roleRun) addConsole(all operations, folder *Reader) operations {
	status := func(_ context.Context, q StatusRequest) (*Status, error) {
		status, err := folder.readStatus(q.Package)
		if err != nil {
			return nil, err
		}
		self := r.process()
		status.Process = &self
		for _, add := range r.console.status {
			add(status)
		}
		return status, nil
	}
	addRequest(all, OpStatus, status)
	addRequest(all, OpDoctor, func(ctx context.Context, _ struct{}) ([]Finding, error) {
		now, err := status(ctx, StatusRequest{})
		if err != nil {
			return nil, err
		}
		return r.examineProcess(ctx, folder, now), nil
	})
	for _, add := range r.console.operations {
		add(all)
	}
	return all
}

// refuseWrites replaces the operations in all that publish, withdraw, restore, recompress, repair, replace the log's key, or
// change schedules and webhooks by ones that return the error why. It returns all.
func refuseWrites(all operations, why error) operations {
	return refuse(all, why, string(OpAdd), string(opMissingContents), string(opImport), string(OpImportTree), string(OpSqueeze),
		string(OpRepair), string(OpRotateKey), string(OpWithdraw), string(OpRestore),
		string(OpScheduleAdd), string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookRemove))
}

// refuse replaces the operations in all that are named, or adds them, so that they return the error why. It returns all.
func refuse(all operations, why error, names ...string) operations {
	for _, name := range names {
		all[name] = func(context.Context, api.OperationRequest, func(any)) (any, error) { return nil, why }
	}
	return all
}

// An Operation is what a command can request from a process: it has types for the request, the events on the way, and the response.
// The string is its name on the admin socket.
type Operation[Request, Event, Answer any] string

// Ask requests the operation from the process of a client, calls report, which may be nil, with each event, and returns the
// response, or the error of the operation or of the connection.
func (o Operation[Request, Event, Answer]) Ask(ctx context.Context, c *Client, request Request, report func(Event)) (Answer, error) {
	return api.SendOperation[Answer](ctx, c.client, string(o), request, nil, report)
}

// operations are what commands can request from a process, by name.
type operations map[string]api.Operation

// addOperation adds to all the operation o, which do carries out, in place of another with that name.
func addOperation[Request, Event, Answer any](all operations, o Operation[Request, Event, Answer], do func(context.Context, Request, func(Event)) (Answer, error)) {
	all[string(o)] = api.TypedOperation(func(ctx context.Context, request Request, _ io.Reader, report func(any)) (any, error) {
		return do(ctx, request, func(e Event) { report(e) })
	})
}

// addRequest adds to all the operation o, which reports no events and which do carries out, in place of another with that name.
func addRequest[Request, Answer any](all operations, o Operation[Request, any, Answer], do func(context.Context, Request) (Answer, error)) {
	addOperation(all, o, func(ctx context.Context, request Request, _ func(any)) (Answer, error) { return do(ctx, request) })
}

// trackOperations returns the operations in all, wrapped so that [Reader.Close] waits until none of them runs.
func (r *Reader) trackOperations(all operations) map[string]api.Operation {
	counted := make(map[string]api.Operation, len(all))
	for name, operation := range all {
		counted[name] = func(ctx context.Context, request api.OperationRequest, report func(any)) (any, error) {
			r.busy.Add(1)
			defer r.busy.Done()
			return operation(ctx, request, report)
		}
	}
	return counted
}

// A Client requests operations from the process that has a data folder open.
type Client struct {
	client *api.AdminClient
	stop   func() error
}

// ErrNoProcess is the error of [Dial] if no process listens on the admin socket of the data folder.
var ErrNoProcess = api.ErrNoProcess

// Dial returns a client of the process that runs on a data folder. It tries once: the error is [ErrNoProcess] if none runs, and
// also while a process has no admin socket because it starts, ends or changes its role.
func Dial(ctx context.Context, data string) (*Client, error) {
	client, err := api.DialAdmin(ctx, data)
	if err != nil {
		return nil, err
	}
	return &Client{client, func() error { return nil }}, nil
}

// Client returns a client that runs the operations of this reader within this process, over a pipe to a server that it starts, so that
// errors arrive as text. Closing the client ends that, and closes the reader.
func (r *Reader) Client() *Client { return r.newClient(r.operations(), r.Close) }

// Client returns a client that runs the operations of this writer within this process, as [Reader.Client]. Closing the client closes
// the writer.
func (w *Writer) Client() *Client { return w.folder.newClient(w.operations(), w.Close) }

// newClient returns a client that runs the operations in all in this process. Closing the client calls closeFolder.
func (r *Reader) newClient(all operations, closeFolder func() error) *Client {
	client, stop := api.AdminInProcess(api.AdminHandler(r.trackOperations(all), r.logger))
	return &Client{client, func() error { return errors.Join(stop(), closeFolder()) }}
}

// Close closes the client, and the folder if this process has opened it for the client. Before that it waits for operations of
// this process.
func (c *Client) Close() error { return c.stop() }

// FsckRequest says what `larder fsck` checks, and what it compares the folder with. See [check.Options].
type FsckRequest struct {
	Deep bool            `json:"deep,omitempty"` // contents are decoded, those that no earlier deep check has verified
	All  bool            `json:"all,omitempty"`  // with Deep: all contents are decoded
	Keys string          `json:"keys"`           // absolute path of the key folder: that of [OpKeyFolder], else that of the command
	Seen logs.Checkpoint `json:"seen"`           // checkpoint of an earlier run; the zero value for none
}

// FsckEvent is sent while a check runs. Exactly one of its fields is not nil.
type FsckEvent struct {
	Finding  *check.Finding  `json:"finding,omitempty"`
	Progress *check.Progress `json:"progress,omitempty"`
}

// Operations of `larder fsck`.
const (
	OpFsck      Operation[FsckRequest, FsckEvent, check.Summary] = "fsck"
	OpKeyFolder Operation[struct{}, any, string]                 = "key-folder" // of the process; "" if that does not sign
)

// addFsckOperations adds the operations of `larder fsck`: the check, whose outcome is stored for `larder doctor` if it is deep or
// finds something, and [OpKeyFolder], which returns "" here.
func (r *Reader) addFsckOperations(all operations) {
	addOperation(all, OpFsck, func(ctx context.Context, q FsckRequest, report func(FsckEvent)) (check.Summary, error) {
		o := check.Options{
			Deep: q.Deep, All: q.All, Record: true, Keys: q.Keys, Seen: q.Seen, Temp: tmpDir(r.settings.Data), Workers: r.workers,
			Progress: func(p check.Progress) { report(FsckEvent{Progress: &p}) },
		}
		summary, err := check.Run(ctx, r.store, o, func(finding check.Finding) { report(FsckEvent{Finding: &finding}) })
		if err == nil && (q.Deep || summary.Findings > 0) {
			var problem error
			if summary.Findings > 0 {
				problem = fmt.Errorf("%s wrong", text.Count(int(summary.Findings), "thing is", "things are"))
			}
			r.recordUpkeep(upkeepFsck, "", problem)
		}
		return summary, err
	})
	addRequest(all, OpKeyFolder, func(context.Context, struct{}) (string, error) { return "", nil })
}

// Operations of an [Importer].
const (
	opMissingContents Operation[ingest.ImportRequest, any, []kvstore.Hash]    = "import-missing" // returns what opImport has to send
	opImport          Operation[ingest.ImportRequest, sources.Event, Written] = "import"         // with contents
)

// Importer returns the process of a client as the receiver of [ingest.SendRelease]: the command reads the source of the
// release, and the process receives a list of its files, and those contents that its store does not have. report is called with
// each event of the process. The caller closes c afterwards.
func Importer(c *Client, report func(sources.Event)) ingest.Importer { return importClient{c, report} }

// An importClient is the [ingest.Importer] that [Importer] returns.
type importClient struct {
	process *Client
	report  func(sources.Event)
}

// MissingContents implements [ingest.Importer]: it returns the hashes of the contents of a release that the process does not
// have.
func (c importClient) MissingContents(ctx context.Context, r ingest.ImportRequest) ([]kvstore.Hash, error) {
	return opMissingContents.Ask(ctx, c.process, r, nil)
}

// Import implements [ingest.Importer]: it sends a release and its contents to the process, which publishes it before Import
// returns. It calls c.report with each event.
func (c importClient) Import(ctx context.Context, r ingest.ImportRequest, contents io.Reader) error {
	_, err := api.SendOperation[Written](ctx, c.process.client, string(opImport), r, contents, c.report)
	return err
}

// addImportOperations adds the operations by which the bot receives the releases of an [Importer]: what contents are missing, and
// the import itself, which publishes.
func (w *Writer) addImportOperations(all operations) {
	addRequest(all, opMissingContents, func(ctx context.Context, q ingest.ImportRequest) ([]kvstore.Hash, error) {
		return useBot(ctx, w, func(sources.Event) {}, func(ctx context.Context, b *bot.Bot) ([]kvstore.Hash, error) {
			return b.MissingContents(ctx, q)
		})
	})
	all[string(opImport)] = api.TypedOperation(func(ctx context.Context, q ingest.ImportRequest, contents io.Reader, report func(any)) (any, error) {
		_, err := useBot(ctx, w, func(e sources.Event) { report(e) }, func(ctx context.Context, b *bot.Bot) (any, error) {
			return nil, b.Import(ctx, q, contents)
		})
		return w.newWritten(), err
	})
}

// dialOr returns a client of the process that has the folder data open. Without such a process it calls alone, which opens the
// folder, and returns nil and the error of alone. It retries for up to reachTimeout while alone finds the folder locked.
func dialOr(ctx context.Context, data string, alone func() error) (*Client, error) {
	for deadline := time.Now().Add(reachTimeout); ; {
		client, err := Dial(ctx, data)
		if !errors.Is(err, ErrNoProcess) {
			return client, err
		}
		if err = alone(); !errors.Is(err, kvstore.ErrLocked) || time.Now().After(deadline) || retry.Sleep(ctx, reachInterval) != nil {
			return nil, err
		}
	}
}
