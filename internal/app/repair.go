package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// RepairRequest is a request of `larder repair`.
type RepairRequest struct {
	// From are the sources, in the order in which they are used: [FromUpstream], or what openSource accepts: URLs of other
	// Larders and of backups, absolute paths of folders and bundles, and [FromBucket].
	From []string `json:"from,omitempty"`
	// AcceptLoss continues the log under a new origin if its last entries are lost for good.
	AcceptLoss bool `json:"acceptLoss,omitempty"`
}

// FromUpstream names, as a source of a repair, the registries and repositories that releases were published from.
const FromUpstream = "upstream"

// FromBucket names, as a source of a repair, the bucket of a node's cluster. A node always uses it: after all other sources,
// unless the request has it elsewhere.
const FromBucket = "bucket"

// RepairEvent is sent while a repair runs. Exactly one of its fields is not nil.
type RepairEvent struct {
	Finding  *check.Finding        `json:"finding,omitempty"`
	Progress *check.RepairProgress `json:"progress,omitempty"`
}

// RepairResult is the result of a repair.
type RepairResult = check.RepairResult

// OpRepair repairs the folder of a running process, which restarts its role afterwards if that changed something. It responds
// before the restart.
const OpRepair Operation[RepairRequest, RepairEvent, check.RepairResult] = "repair"

// Repair repairs the data folder of the settings, with the sources of q. If a process runs on the folder, that process repairs
// it, and Repair returns when the process has restarted its role, or at once if nothing was changed. Otherwise Repair does it
// itself, and retries for up to reachTimeout while a process that starts or ends has the folder locked. report is called with
// findings and progress.
func Repair(ctx context.Context, s *settings.Settings, q RepairRequest, logger *slog.Logger, report func(RepairEvent)) (result check.RepairResult, err error) {
	client, err := dialOr(ctx, s.Data, func() error {
		if len(q.From) == 0 && s.Bucket == "" && !check.RepairInterrupted(s.Data) {
			if err := checkStoreExists(s); err != nil {
				return err
			}
		}
		return withSources(s, q, logger, report, func(o check.RepairOptions) (err error) {
			result, err = check.Repair(ctx, o)
			return err
		})
	})
	if client != nil {
		return repairByProcess(ctx, client, s.Data, q, report)
	}
	return result, err
}

// repairByProcess has the process of a client, which runs on the folder data, repair that folder. If the repair changed
// something, it waits until the process has restarted its role. It closes the client.
func repairByProcess(ctx context.Context, client *Client, data string, q RepairRequest, report func(RepairEvent)) (check.RepairResult, error) {
	before, unknown := OpProcess.Ask(ctx, client, struct{}{}, nil) // an error matters only if the repair changed something
	result, err := OpRepair.Ask(ctx, client, q, report)
	if err = errors.Join(err, client.Close()); err != nil || result.Repaired == 0 && result.Damage == "" {
		return result, err
	}
	if unknown != nil {
		return result, unknown
	}
	return result, before.awaitNextRun(ctx, data)
}

// withSources opens the sources that q names for a repair of the data folder of the settings, and calls do with them and the
// other options. After do has succeeded, it restores the settings of waiting rooms from the first backup among the sources,
// unless the folder has some. In any case it closes the sources. It returns the errors of these steps.
func withSources(s *settings.Settings, q RepairRequest, logger *slog.Logger, report func(RepairEvent), do func(check.RepairOptions) error) (err error) {
	sources, closeSources, err := openSources(s, q.From, logger)
	defer func() { err = errors.Join(err, closeSources()) }()
	if err != nil {
		return err
	}
	keys := s.KeyFolder()
	err = do(check.RepairOptions{
		Data: s.Data, Keys: keys, Mark: filepath.Join(keys, markFile), Built: waitingroom.Forget,
		Shared: s.Bucket != "", Temp: tmpDir(s.Data), CacheBytes: s.StoreCache,
		Sources: sources, AcceptLoss: q.AcceptLoss, Logger: logger.With("part", "store"),
		Report:   func(f check.Finding) { report(RepairEvent{Finding: &f}) },
		Progress: func(p check.RepairProgress) { report(RepairEvent{Progress: &p}) },
	})
	if err == nil {
		err = restoreRooms(s.Data, sources)
	}
	return err
}

// errAcceptLoss is the error of a repair with AcceptLoss while a process runs.
var errAcceptLoss = errors.New("--accept-loss makes another log with another key; stop the larder process that runs on the data folder first")

// errRepairing is the error of a second repair at the same time.
var errRepairing = errors.New("a repair is under way; wait until it is done")

// addRepair adds to all the operation of `larder repair`, which do carries out. A request to accept loss gets errAcceptLoss,
// and one during another repair errRepairing; do is not called then.
func addRepair(all operations, do func(context.Context, RepairRequest, func(RepairEvent)) (check.RepairResult, error)) {
	var repairing sync.Mutex
	addOperation(all, OpRepair, func(ctx context.Context, q RepairRequest, report func(RepairEvent)) (check.RepairResult, error) {
		if q.AcceptLoss {
			return check.RepairResult{}, errAcceptLoss
		}
		if !repairing.TryLock() {
			return check.RepairResult{}, errRepairing
		}
		defer repairing.Unlock()
		return do(ctx, q, report)
	})
}

// addRepairInPlace adds to all the operation that repairs the open store of folder while the role runs. If the repair changed
// something, even if it failed later, the role restarts.
func (r *roleRun) addRepairInPlace(all operations, folder *Reader) {
	addRepair(all, func(ctx context.Context, q RepairRequest, report func(RepairEvent)) (result check.RepairResult, err error) {
		err = withSources(r.settings, q, r.logger, report, func(o check.RepairOptions) error {
			result, err = check.RepairInPlace(ctx, folder.store, folder.log, o)
			return err
		})
		if result.Repaired > 0 { // also where it ended early
			r.requestRestart(restart{})
		}
		return result, err
	})
}

// addRebuild adds to all the operation that builds a new store beside the damaged one, of which shortfall says what is damaged
// or lost. If that succeeds, it requests a restart of the role; the new store replaces the damaged one between the two runs. If
// that replacement fails, the process ends.
func (r *roleRun) addRebuild(all operations, shortfall *Shortfall) {
	addRepair(all, func(ctx context.Context, q RepairRequest, report func(RepairEvent)) (result check.RepairResult, err error) {
		err = withSources(r.settings, q, r.logger, report, func(o check.RepairOptions) error {
			if err := os.MkdirAll(o.Temp, 0o700); err != nil {
				return err
			}
			result, err = check.Rebuild(ctx, shortfall, o)
			if err == nil {
				r.requestRestart(restart{before: func() error {
					kept, err := check.Swap(o)
					if err == nil {
						r.logger.Warn("the repaired store replaces the damaged one", "kept", kept)
					} else if kept != "" {
						r.logger.Error("the damaged store was renamed, and the repaired one not; the next start does that", "kept", kept, "err", err)
					}
					return err
				}})
			}
			return err
		})
		return result, err
	})
}

// finishRepair completes a repair that was interrupted after it had moved the damaged store away, or takes back one that was
// interrupted before that, and logs which. It does nothing if no repair was interrupted. No process may have the store open.
// removeReplaced deletes the replaced store later.
func finishRepair(s *settings.Settings, logger *slog.Logger) error {
	did, err := check.FinishRepair(s.Data, filepath.Join(s.KeyFolder(), markFile))
	if did != "" {
		logger.Warn(did, "data", s.Data)
	}
	return err
}

// removeReplaced removes the stores in the data folder that a repair replaced over a month ago. The present store must have been
// opened. It logs what it removes, and errors.
func removeReplaced(data string, logger *slog.Logger) {
	removed, err := check.RemoveReplaced(data, time.Now())
	for _, path := range removed {
		logger.Info("removed a store that a repair had replaced over a month ago", "store", path)
	}
	if err != nil { // such as on a read-only disk, where the store still serves
		logger.Warn("couldn't remove a store that a repair had replaced over a month ago", "err", err)
	}
}

// openSources opens the sources that a store is repaired from: those named in from, in that order, and then the bucket of the
// settings, unless from names it. close is never nil, and closes what was opened; the caller calls it also after an error.
func openSources(s *settings.Settings, from []string, logger *slog.Logger) (sources []check.Source, close func() error, err error) {
	release := func() {}
	close = func() (err error) {
		defer func() { release() }()
		for _, source := range sources {
			if closer, ok := source.(io.Closer); ok {
				err = errors.Join(err, closer.Close())
			}
		}
		return err
	}
	if s.Bucket != "" && !slices.Contains(from, FromBucket) {
		from = append(slices.Clip(from), FromBucket)
	}
	for _, where := range from {
		var source check.Source
		if where == FromUpstream {
			source, release, err = openUpstreamSource(s, logger.With("part", "bot"))
		} else {
			source, err = openSource(s, where, logger.With("part", "store"))
		}
		if err != nil {
			return sources, close, err
		}
		if server, ok := source.(*replication.Server); ok {
			server.MaxFailures = repairFailures
		}
		sources = append(sources, source)
	}
	return sources, close, nil
}

// repairFailures is how many requests to a server may fail in a row before a repair stops using it. It is large because a
// repair sends many requests.
const repairFailures = 64

// openSource opens a source of a log and its contents. where is the http or https URL of another Larder, the s3 or file URL of
// a backup, the path of a folder with a store or a backup or of a bundle file, or [FromBucket], the bucket of the cluster. A
// folder or a file has to exist, except the folder of the cluster's bucket, which is created. Missing keys of a backup are no error
// here. openSource sends no request: a server or an object store that does not respond is an error on
// first use. The caller closes the source if it is an [io.Closer] and there was no error.
func openSource(s *settings.Settings, where string, logger *slog.Logger) (replication.Source, error) {
	switch {
	case where == FromBucket && s.Bucket == "":
		return nil, settings.Mistakef("--from %s needs --bucket: the bucket that the nodes share", FromBucket)
	case where == FromBucket:
		b, err := bucket.Open(s.Bucket, s.BucketEndpoint, s.BucketRegion)
		return &replication.Bucket{Bucket: b}, err
	case bucket.CheckURL(where) == nil:
		if u, err := url.Parse(where); err == nil && u.Scheme == "file" {
			if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s is not a folder that exists; --from needs the URL of a backup", where)
			}
		}
		return openBackupSource(s, where)
	case verify.IsURL(where):
		return replication.NewServer(verify.Options{Server: strings.TrimRight(where, "/"), UserAgent: UserAgent()}), nil
	}
	switch info, err := os.Stat(where); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is neither a folder nor a bundle that exists, nor a URL of another Larder such as https://cdn.example.com, nor one of the words %s and %s", where, FromBucket, FromUpstream)
	case err == nil && info.Mode().IsRegular():
		return replication.OpenBundle(where)
	case err == nil && isBackup(where):
		if where, err = filepath.Abs(where); err != nil {
			return nil, err
		}
		return openBackupSource(s, folderURL(where))
	}
	return replication.OpenFolder(where, logger)
}

// openBackupSource returns the backup at the URL target as a source. It reads nothing of the backup yet: the source's methods
// fail if the backup is missing, empty or cannot be decrypted. For a file URL a missing folder is created. The keys in the key
// folder of the settings decrypt the backup's newest record; if that folder has no keys, only reading the record fails.
func openBackupSource(s *settings.Settings, target string) (replication.Source, error) {
	keys, err := openBackupKeys(s.KeyFolder(), false)
	if err != nil {
		return nil, err
	}
	b, err := bucket.Open(target, s.BucketEndpoint, s.BucketRegion)
	if err != nil {
		return nil, fmt.Errorf("couldn't open the backup: %w", err)
	}
	return newBackupSource(b, keys), nil
}

// openUpstreamSource returns a source that makes releases again from their registries and repositories. release closes the idle
// connections to these; it is never nil, and is called after the source was closed.
func openUpstreamSource(s *settings.Settings, logger *slog.Logger) (_ *bot.Regenerator, release func(), err error) {
	o := bot.ClientOptions{OwnConfig: true}
	o.Fetch.Concurrency = bot.DownloadsAtOnce
	c, err := openClients(s, o, logger)
	if err != nil {
		return nil, func() {}, err
	}
	regenerator, err := bot.NewRegenerator(bot.Options{
		Upstreams: bot.Upstreams{Npm: c.Npm, Git: c.Git}, Limits: bot.Limits{MemoryBytes: s.Memory},
		TempDir: filepath.Join(tmpDir(s.Data), "repair"), Logger: logger,
	})
	if err != nil {
		c.Close()
		return nil, func() {}, err
	}
	return regenerator, c.Close, nil
}
