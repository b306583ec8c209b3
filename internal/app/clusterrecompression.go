package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// Followers recompress for the leader: each requests a content, encodes it at low priority, and sends the encodings with the next
// request. The leader decodes them, and stores those that are smaller. It recompresses itself the contents of a follower that does
// not send them.

const (
	squeezePath   = "/squeeze"
	squeezeFind   = time.Minute      // until the next search for the leader, after a failure
	squeezeTime   = 30 * time.Minute // far more than the largest content takes
	squeezeAsk    = time.Minute      // for the response of the leader
	maxEncodings  = 16 << 20         // bytes of a content's encodings
	maxConcurrent = 2                // requests whose encodings are decoded at a time, which may be large
)

// serveRecompression returns the leader's handler for followers that recompress: it has the bot b store the encodings in a
// request's body, which may be empty, and responds with the hash of the next content to recompress, or 204 if b has none. It
// responds 405 to methods other than POST, and 400 to encodings that it cannot use, which it logs. It decodes at most
// maxConcurrent bodies at a time; other requests wait.
func (l *clusterLeader) serveRecompression(b *bot.Bot) http.Handler {
	decoding := make(chan struct{}, maxConcurrent)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "want POST", http.StatusMethodNotAllowed)
			return
		}
		select {
		case decoding <- struct{}{}:
			defer func() { <-decoding }()
		case <-r.Context().Done():
			return
		}
		packed, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEncodings))
		if err == nil && len(packed) > 0 {
			err = l.node.cluster.UnpackContents(packed, func(h kvstore.Hash, size int64, coded []kvstore.Coded) error {
				return b.StoreOffered(r.Context(), h, size, coded)
			})
		}
		if err != nil {
			l.run.logger.Warn("couldn't use the encodings that another node has made of a content", "node", r.RemoteAddr, "err", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h, ok, err := b.OfferContent()
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case !ok:
			w.WriteHeader(http.StatusNoContent)
		default:
			io.WriteString(w, h.String()) //nolint:errcheck // the node has gone, and the content is done here
		}
	})
}

// recompressForLeader finds the leader and recompresses contents for it until ctx ends. It returns at once if this node lacks
// the cluster's key or enough memory. every is the time until the first request, and between requests while the leader has no
// content.
func (n *clusterNode) recompressForLeader(ctx context.Context, every time.Duration) {
	if n.peers.clientTLS == nil || n.settings.Memory < recompression.HelperMemory() {
		return
	}
	encoders := newWorkers(worker.Options{Size: 1, Nice: true, Timeout: squeezeTime})
	defer encoders.Close()
	for wait := every; retry.Sleep(ctx, wait) == nil; wait = squeezeFind {
		to, err := n.findLeader(ctx)
		if err != nil {
			continue // other parts log it
		}
		if err = n.recompressContents(ctx, every, encoders, to); ctx.Err() == nil {
			n.logger.Debug("couldn't recompress for the leader; trying again", "node", to, "err", err)
		}
	}
}

// recompressContents recompresses the contents that the leader at the URL to offers, one after the other, until ctx ends, a
// request fails or the encoders cannot start. It always returns an error. It leaves a content that it cannot recompress to the
// leader. every is the interval between requests while the leader has no content, and after such a content.
func (n *clusterNode) recompressContents(ctx context.Context, every time.Duration, encoders *worker.Pool, to string) error {
	var packed []byte
	for contents := 0; ; {
		h, ok, err := requestRecompression(ctx, n.peers.client, to, packed)
		if err != nil {
			return err
		}
		if !ok {
			if contents > 0 {
				n.logger.Info("recompressed contents for the leader", "node", to, "contents", contents)
			}
			contents, packed = 0, nil
			if err := retry.Sleep(ctx, every); err != nil {
				return err
			}
			continue
		}
		if contents == 0 && packed == nil {
			n.logger.Info("recompressing contents for the leader", "node", to)
		}
		switch packed, err = n.recompress(ctx, encoders, h); {
		case err == nil:
			contents++
		case ctx.Err() != nil || errors.As(err, new(*worker.StartError)):
			return err
		default: // the leader does it
			n.logger.Debug("couldn't recompress a content; the leader does it", "content", h, "err", err)
			if err := retry.Sleep(ctx, every); err != nil {
				return err
			}
		}
	}
}

// recompress finds the smallest encodings of the content h in a worker process, stores them here, and returns them packed for
// the leader. An error, such as that of a content that this node does not have yet or of a crash, leaves the content to the
// leader.
func (n *clusterNode) recompress(ctx context.Context, encoders *worker.Pool, h kvstore.Hash) (packed []byte, err error) {
	data, err := n.folder.store.Identity(h) // not found if this node is behind
	if err != nil {
		return nil, err
	}
	coded, crash, err := recompression.Encode(ctx, encoders, h.String(), data, n.logger.With("content", h))
	if err == nil && crash != nil {
		err = crash
	}
	if err == nil {
		err = n.folder.store.ImproveContent(h, int64(len(data)), true, coded)
	}
	if err != nil {
		return nil, err
	}
	return n.cluster.PackContent(h)
}

// requestRecompression sends the leader at the URL to the packed encodings of the content that this node has recompressed, nil
// for none, and returns the hash of the next content to recompress. ok is false if the leader has none, or after an error.
func requestRecompression(ctx context.Context, client *http.Client, to string, packed []byte) (h kvstore.Hash, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, squeezeAsk)
	defer cancel()
	wanted, err := postToLeader(ctx, client, to+squeezePath, bytes.NewReader(packed), shortResponse)
	if err != nil || len(wanted) == 0 {
		return h, false, err
	}
	h, err = kvstore.ParseHash(string(wanted))
	return h, err == nil, err
}
