package app

import (
	"context"
	"io"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/kvstore"
)

// Operations of an [Importer].
const (
	opMissingContents Operation[bot.ImportRequest, any, []kvstore.Hash] = "import-missing"
	opImport          Operation[bot.ImportRequest, bot.Event, Written]  = "import" // with contents
)

// Importer returns the process of a client as the receiver of [bot.SendRelease]. The command reads the source of the release; the
// process receives a list of its files, and the contents that its store does not have.
func Importer(c *Client, report func(bot.Event)) bot.Importer { return importClient{c, report} }

type importClient struct {
	process *Client
	report  func(bot.Event)
}

// MissingContents returns which contents of a release the process does not have. It implements [bot.Importer].
func (c importClient) MissingContents(ctx context.Context, r bot.ImportRequest) ([]kvstore.Hash, error) {
	return opMissingContents.Ask(ctx, c.process, r, nil)
}

// Import sends a release and its contents to the process, which publishes it. It implements [bot.Importer].
func (c importClient) Import(ctx context.Context, r bot.ImportRequest, contents io.Reader) error {
	_, err := admin.Send[Written](ctx, c.process.client, string(opImport), r, contents, c.report)
	return err
}

// addImportOperations adds the operations that receive the releases of an [Importer].
func (w *Writer) addImportOperations(all operations) {
	addOperation(all, opMissingContents, func(ctx context.Context, q bot.ImportRequest, _ func(any)) ([]kvstore.Hash, error) {
		f, err := w.filler.get()
		if err != nil {
			return nil, err
		}
		return f.bot.MissingContents(ctx, q)
	})
	all[string(opImport)] = admin.TypedWithContents(func(ctx context.Context, q bot.ImportRequest, contents io.Reader, report func(any)) (any, error) {
		f, err := w.filler.get()
		if err != nil {
			return nil, err
		}
		err = f.bot.Import(bot.WithReport(ctx, func(e bot.Event) { report(e) }), q, contents)
		return w.written(), err
	})
}
