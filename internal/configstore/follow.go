package configstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// A store that shares its record compares its copy with the authority at each listing, and repeats what failed.

// copyVersion stores a version of the authority (the shared backend) in this machine's copy. It only records a failure, for
// [Store.copyAgain], which tries again, and logs the first one of a version. If the copy has versions of another record, it removes
// these first. A store that shares no record has no copy: then it does nothing. The caller holds changing.
func (s *Store) copyVersion(ctx context.Context, v Version) {
	if !s.Shared() {
		return
	}
	var err error
	if s.foreign {
		err = s.removeOthers(ctx, v.Number)
	}
	if err == nil {
		err = s.options.Copy.put(ctx, v)
	}
	if err != nil {
		if !s.toCopy[v.Number] {
			s.options.Logger.Warn("a version of the configuration record cannot be copied here; trying again", "version", v.Number, "err", err)
		}
		s.toCopy[v.Number] = true
		s.setProblem(uncopied, fmt.Errorf(
			"version %d cannot be copied to this machine, which would not know it at a start without the shared record: %w", v.Number, err,
		))
		return
	}
	s.foreign = false
	delete(s.toCopy, v.Number)
}

// removeOthers removes all versions from this machine's copy, but not the one with the number except. It begins with the newest,
// so that an interrupted removal leaves a copy that still differs from the authority's record.
func (s *Store) removeOthers(ctx context.Context, except int64) error {
	copies, err := s.options.Copy.list(ctx)
	for _, at := range slices.Backward(copies) {
		if err == nil && at.number != except {
			err = s.options.Copy.delete(ctx, at.number)
		}
	}
	return err
}

// copyAgain copies to this machine the versions that could not be copied before. It gives up versions that no longer exist or are
// damaged. The caller holds changing.
func (s *Store) copyAgain(ctx context.Context) {
	for number := range s.toCopy {
		v, err := s.Read(ctx, number)
		switch {
		case err == nil:
			s.copyVersion(ctx, v)
		case errors.Is(err, ErrNoVersion) || isCorrupt(err):
			delete(s.toCopy, number)
		}
	}
	if len(s.toCopy) == 0 {
		s.setProblem(uncopied, nil)
	}
}

// Refresh reads the versions that the authority (the shared backend) has and this store does not know, and puts the newest into
// force. An error says that the authority cannot be read; the version in force stays. Damaged versions, and versions that a
// subscriber cannot apply, are no error: see [Store.State].
func (s *Store) Refresh(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.refresh(ctx)
}

// refresh does the work of [Store.Refresh]. It also copies versions to this machine, deletes old copies, and uploads versions
// that the authority lacks if this store owns the record. The caller holds changing.
func (s *Store) refresh(ctx context.Context) (err error) {
	s.setChecked(time.Time{})
	defer func() {
		if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // a deadline is the authority's failure
			s.setProblem(unreadable, err)
		}
	}()
	now := s.options.Now()
	all, err := s.options.Authority.list(ctx)
	if err != nil {
		return err
	}
	s.listed = newestNumber(all)
	if s.Shared() {
		if err := s.followRecord(ctx, all); err != nil {
			return err
		}
	}
	if err := s.readUnknown(ctx, s.options.Authority, all); err != nil {
		return err
	}
	if !s.Shared() {
		s.setConfirmed()
		return nil
	}
	s.copyAgain(ctx)
	s.prune(ctx, s.options.Copy)
	complete := s.upload(ctx, all)
	if len(s.toCopy) == 0 && (complete || !s.owns) {
		s.setChecked(now)
	}
	return nil
}

// setChecked records listed, when the authority was last listed and everything was in order; the zero time if something is left
// to do.
func (s *Store) setChecked(listed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = listed
}

// readUnknown reads those versions of a listing of a backend that the history does not have, copies those of the authority to this
// machine, and puts the newest one into force. It only records damaged ones, and logs new damage once; an error says that the backend cannot be read.
// The caller holds changing, or is [Open].
func (s *Store) readUnknown(ctx context.Context, from *Backend, all []stored) error {
	var broken error
	for _, at := range slices.Backward(all) {
		if at.number <= s.pruned || s.inHistory(at.number) {
			continue
		}
		v, err := from.read(ctx, at.number)
		switch {
		case isCorrupt(err):
			if s.reported[at.number] != err.Error() {
				s.reported[at.number] = err.Error()
				s.options.Logger.Error("a version of the configuration record is damaged and not used; restore it from a backup, or remove it",
					"version", at.number, "err", err)
			}
			broken = errors.Join(broken, err)
			continue
		case errors.Is(err, bucket.ErrNotFound):
			continue // pruned meanwhile
		case err != nil:
			return err
		}
		if from == s.options.Authority {
			s.copyVersion(ctx, v)
		}
		if known, _ := s.Get(); v.Number > known.Number {
			s.putInForce(v) //nolint:errcheck // the subscriber reports it, and is notified again
		}
		s.addToHistory(v)
	}
	s.setProblem(damaged, broken)
	return nil
}

// Follow keeps the store current until ctx ends: at intervals it reads new versions of the authority (the shared backend), puts
// the newest into force, and repeats what failed.
func (s *Store) Follow(ctx context.Context) {
	for retry.Sleep(ctx, followInterval) == nil {
		s.followOnce(ctx)
	}
}

// followOnce does one round of [Store.Follow]: it notifies subscribers again that failed, and refreshes a shared store if there
// may be a newer version.
func (s *Store) followOnce(ctx context.Context) {
	s.retryApply()
	if !s.Shared() || s.knowsNewest(ctx) {
		return
	}
	failed := s.State().Problem != nil
	if err := s.Refresh(ctx); err != nil && !failed && ctx.Err() == nil {
		s.options.Logger.Warn("the shared configuration record cannot be read; the version that is in force here stays so",
			"version", s.State().Version.Number, "err", err)
	}
}

// knowsNewest reports whether the version in force is still the newest one. It requests the next number from the authority, which
// is cheaper than a listing, and records that the authority has confirmed the version. It returns false if the authority does not
// respond, or the last listing is long ago or left something to do.
func (s *Store) knowsNewest(ctx context.Context) bool {
	known := s.inForce.Get().Number
	s.mu.Lock()
	checked, behind := s.checked, s.behind
	s.mu.Unlock()
	if age := s.options.Now().Sub(checked); age < 0 || age >= listInterval {
		return false
	}
	s.changing.Lock()
	next := max(known, s.listed) + 1
	s.changing.Unlock()
	if _, err := s.options.Authority.read(ctx, next); !errors.Is(err, bucket.ErrNotFound) {
		return false
	}
	if !behind {
		s.setConfirmed()
	}
	return true
}

// followRecord compares the history here with all, a listing of the authority. If they are versions of the same record, it does
// nothing. If not, it replaces the history by the authority's newest sound version and puts that into force. It returns an error
// if the authority cannot be read, or none of its versions is sound. The caller holds changing.
func (s *Store) followRecord(ctx context.Context, all []stored) error {
	same, err := s.isSameRecord(ctx, all)
	if err != nil || same {
		return err
	}
	v, err := s.options.Authority.readNewest(ctx, all)
	if err != nil {
		return err
	}
	if v.Number == 0 {
		return &CorruptError{s.options.Authority.bucket.String() + "/" + s.options.Authority.prefix, errors.New("no version of it can be read")}
	}
	s.options.Logger.Warn("the configuration record of the cluster takes the place of the one that was here", "version", v.Number)
	s.mu.Lock()
	s.history = nil
	s.mu.Unlock()
	s.foreign, s.toCopy, s.pruned = true, map[int64]bool{}, 0
	s.copyVersion(ctx, v)
	s.putInForce(v) //nolint:errcheck // the subscriber reports it, and is notified again
	return nil
}

// isSameRecord reports whether the history here and all, a listing of the authority, are of the same record: the newest version
// that both have has the same ID. If they have no sound version in common, they are of the same record if one of them is empty, or
// a common version is damaged or was deleted meanwhile. An error says that the authority cannot be read. The caller holds changing.
func (s *Store) isSameRecord(ctx context.Context, all []stored) (bool, error) {
	ids := map[int64]string{}
	for _, v := range s.History() {
		ids[v.Number] = v.ID
	}
	common := slices.DeleteFunc(slices.Clone(all), func(at stored) bool {
		_, known := ids[at.number]
		return !known
	})
	v, err := s.options.Authority.readNewest(ctx, common)
	if err != nil || v.Number > 0 {
		return v.ID == ids[v.Number], err
	}
	return len(all) == 0 || len(ids) == 0 || len(common) > 0, nil
}

// prune deletes the oldest versions of the backend b that exceed the limits of the history, and for this machine's own backend
// also removes them from the history, even if it could not delete them. It only logs errors. The caller holds changing.
func (s *Store) prune(ctx context.Context, b *Backend) {
	all, err := b.list(ctx)
	old := s.excessVersions(all)
	for _, at := range old {
		if err == nil {
			err = b.delete(ctx, at.number)
		}
	}
	if err != nil {
		s.options.Logger.Warn("old versions of the configuration record cannot be removed", "from", b.bucket.String(), "err", err)
	}
	if b != s.options.Copy || len(old) == 0 {
		return
	}
	s.pruned = newestNumber(old)
	s.mu.Lock()
	s.history = slices.DeleteFunc(s.history, func(v Version) bool { return v.Number <= s.pruned })
	s.mu.Unlock()
}

// excessVersions returns the oldest versions of a listing that exceed the limits of the history: number and bytes. The two newest
// never do, and damaged versions do not count.
func (s *Store) excessVersions(all []stored) []stored {
	size, count := int64(0), 0
	for i, at := range slices.Backward(all) {
		if !s.inHistory(at.number) {
			continue
		}
		count++
		size += at.size
		if count > 2 && (count > maxVersions || size > maxHistoryBytes) {
			return all[:i+1]
		}
	}
	return nil
}

// Share makes this store the owner of the record, which uploads the versions that the authority (the shared backend) lacks: when
// the first node of a cluster shares its record, or after the authority has lost versions. It refreshes the store and uploads them,
// and returns nil if the authority lacks none then, else why it does. [Store.Follow] continues what Share cannot finish. A store
// that is not shared only refreshes.
func (s *Store) Share(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.owns = s.Shared()
	if err := s.refresh(ctx); err != nil {
		return err
	}
	return s.problemOf(lacking)
}

// problemOf returns the present problem of a kind, nil for none.
func (s *Store) problemOf(p problem) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems[p]
}

// upload uploads the versions that all, a listing of the authority, lacks, if this store owns the record. It records whether the
// authority is still behind, else that the authority has confirmed the version in force. It returns false if an upload failed, and
// true for a store that does not own the record. The caller holds changing.
func (s *Store) upload(ctx context.Context, all []stored) bool {
	var err error
	if s.owns {
		err = s.uploadMissing(ctx, all)
	}
	current, _ := s.Get()
	behind := current.Number > newestNumber(all) && (!s.owns || err != nil)
	if behind {
		s.setProblem(lacking, errors.Join(fmt.Errorf(
			"version %d is in force here, and the shared record ends with version %d, as after an old copy of it was restored; "+
				"the leader uploads its versions", current.Number, newestNumber(all)), err))
	} else {
		s.setProblem(lacking, err)
		s.setConfirmed()
	}
	s.mu.Lock()
	s.behind = behind
	s.mu.Unlock()
	return err == nil
}

// uploadMissing uploads the versions of this machine's copy that all, a listing of the authority, lacks. It begins with the
// newest one, so that a partial upload never puts an older version into force, and stops at the first error. It leaves damaged
// ones out.
func (s *Store) uploadMissing(ctx context.Context, all []stored) error {
	copies, err := s.options.Copy.list(ctx)
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(copies) {
		if !s.inHistory(at.number) || slices.ContainsFunc(all, func(has stored) bool { return has.number == at.number }) {
			continue
		}
		v, err := s.options.Copy.read(ctx, at.number)
		if isCorrupt(err) || errors.Is(err, bucket.ErrNotFound) {
			continue
		}
		if err == nil {
			err = s.options.Authority.create(ctx, v)
		}
		if errors.Is(err, bucket.ErrExists) { // another machine uploaded it meanwhile
			continue
		}
		if err != nil {
			return fmt.Errorf("version %d cannot be uploaded: %w", at.number, err)
		}
		s.options.Logger.Info("a version of the configuration record was uploaded that the shared one lacked", "version", at.number)
	}
	return nil
}
