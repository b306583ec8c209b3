package app

import (
	"context"
	"io"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot/events"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/kvstore"
)

// Operations of an [Importer].
const (
	opMissingContents Operation[ingest.ImportRequest, any, []kvstore.Hash]   = "import-missing"
	opImport          Operation[ingest.ImportRequest, events.Event, Written] = "import" // with contents
)

// Importer returns the process of a client as the receiver of [ingest.SendRelease]: the command reads the source of the release,
// and the process receives a list of its files, and those contents that its store does not have. report is called with each event
// of the process.
func Importer(c *Client, report func(events.Event)) ingest.Importer { return importClient{c, report} }

type importClient struct {
	process *Client
	report  func(events.Event)
}

// MissingContents returns which contents of a release the process does not have. It implements [ingest.Importer].
func (c importClient) MissingContents(ctx context.Context, r ingest.ImportRequest) ([]kvstore.Hash, error) {
	return opMissingContents.Ask(ctx, c.process, r, nil)
}

// Import sends a release and its contents to the process, which publishes it. It implements [ingest.Importer].
func (c importClient) Import(ctx context.Context, r ingest.ImportRequest, contents io.Reader) error {
	_, err := admin.Send[Written](ctx, c.process.client, string(opImport), r, contents, c.report)
	return err
}

// addImportOperations adds the operations by which the bot receives the releases of an [Importer]: what contents are missing, and
// the import itself, which publishes.
func (w *Writer) addImportOperations(all operations) {
	addRequest(all, opMissingContents, func(ctx context.Context, q ingest.ImportRequest) ([]kvstore.Hash, error) {
		f, err := w.filler.get()
		if err != nil {
			return nil, err
		}
		return f.bot.MissingContents(ctx, q)
	})
	all[string(opImport)] = admin.TypedWithContents(func(ctx context.Context, q ingest.ImportRequest, contents io.Reader, report func(any)) (any, error) {
		f, err := w.filler.get()
		if err != nil {
			return nil, err
		}
		err = f.bot.Import(events.WithReport(ctx, func(e events.Event) { report(e) }), q, contents)
		return w.newWritten(), err
	})
}
