package waitingroom

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// obstruct puts a file in the place of a folder, and returns what takes it away again.
func (f *recordFixture) obstruct(folder string) (clear func()) {
	f.Helper()
	aside := folder + "-aside"
	if err := os.Rename(folder, aside); err != nil && !os.IsNotExist(err) {
		f.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(folder), 0o700), os.WriteFile(folder, nil, 0o600)); err != nil {
		f.Fatal(err)
	}
	return func() {
		f.Helper()
		if err := os.Remove(folder); err != nil {
			f.Fatal(err)
		}
		if err := os.Rename(aside, folder); err != nil && !os.IsNotExist(err) {
			f.Fatal(err)
		}
	}
}

// A process that could not store the first version goes by its file, reloads, and stores the version as soon as it can.
func TestReloadWithoutStoredRecord(t *testing.T) {
	f := newRecordFixture(t)
	clear := f.obstruct(filepath.Join(f.data(), RecordFolder, "version"))
	f.start()
	f.shop(0, 10)
	if err := f.reload(); err != nil {
		t.Errorf("the same file is not reloaded: %v", err)
	}
	f.write(shopOf40)
	if err := f.reload(); err == nil || !strings.Contains(err.Error(), "cannot be stored") {
		t.Errorf("another file is reloaded, and not stored: %v", err)
	}
	f.shop(0, 10)
	clear()
	if err := f.reload(); err != nil {
		t.Fatal(err)
	}
	f.shop(2, 40)
}

// A change by a command also stores the first version that could not be stored.
func TestSetWithoutStoredRecord(t *testing.T) {
	f := newRecordFixture(t)
	clear := f.obstruct(filepath.Join(f.data(), RecordFolder, "version"))
	f.start()
	clear()
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	f.shop(2, 20)
}

// A refusingLeader refuses all changes, and counts them.
type refusingLeader struct{ asked *int }

func (l refusingLeader) refuse() (Version, error) {
	*l.asked++
	return Version{}, errors.New("the leader does not know the operation")
}

func (l refusingLeader) Set(context.Context, SetRoomRequest) (Version, error) {
	return l.refuse()
}
func (l refusingLeader) Apply(context.Context, ApplyRoomsRequest) (Version, error) {
	return l.refuse()
}
func (l refusingLeader) Undo(context.Context, UndoRoomsRequest) (Version, error) {
	return l.refuse()
}

// follow has the process be a follower whose leader refuses all changes.
func (f *recordFixture) follow() (asked *int) {
	asked = new(int)
	f.record.follows, f.record.changer, f.record.offers = true, refusingLeader{asked}, refusingLeader{asked}
	return asked
}

// A follower without a record, as while a leader runs Larder 0.1.0, reloads with the file that it goes by, and asks the leader
// only about another one.
func TestFollowerReloadsWithoutRecord(t *testing.T) {
	f := newRecordFixture(t)
	f.obstruct(filepath.Join(f.data(), RecordFolder, "version"))
	f.start()
	asked := f.follow()
	if err := f.reload(); err != nil || *asked != 0 {
		t.Errorf("the same file: %v, asked %d times", err, *asked)
	}
	f.write(shopOf40)
	if err := f.reload(); err == nil || *asked != 1 {
		t.Errorf("another file: %v, asked %d times", err, *asked)
	}
	f.shop(0, 10)
}

// A node without the cluster's key goes by its own file, whatever was in force before, and changes nothing by commands.
func TestRoomsWithoutClusterKey(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	f.apply(shopOf50)
	f.shop(2, 50)
	asked := 0
	f.backends, f.leader = IsolatedRecord, refusingLeader{&asked}
	f.start()
	f.shop(1, 10)
	for version, file := range []string{2: shopOf40, 3: shopOf50, 4: shopOf40, 5: shopAndOwn} {
		if version < 2 {
			continue
		}
		f.write(file)
		if err := f.reload(); err != nil {
			t.Fatal(err)
		}
		f.shop(int64(version), map[string]int{shopOf40: 40, shopOf50: 50, shopAndOwn: 10}[file])
	}
	f.write(shopOf40)
	f.start()
	f.shop(6, 40)
	if err := f.set(map[string]string{"total_active_users": "20"}); err == nil || asked != 1 {
		t.Errorf("a change by a command: %v, asked %d times", err, asked)
	}
	f.shop(6, 40)
	f.backends, f.leader = LocalRecord, nil
	f.start() // the record of before is as it was
	if v, _ := f.record.store.Get(); v.Number != 2 || v.File != config.Hash([]byte(shopOf50)) {
		t.Errorf("%+v", v.Change)
	}
}

// Values of fields, which may be secrets, are in no log and no origin.
func TestRoomValuesAreNotPrinted(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	if err := f.set(map[string]string{"custom_page_html": "secret", "total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	v, _ := f.record.store.Get()
	if !strings.HasPrefix(v.Origin, "larder room set shop custom_page_html total_active_users on ") {
		t.Errorf("the origin is %q", v.Origin)
	}
	_, err := f.record.changer.Undo(t.Context(), UndoRoomsRequest{Base: 1})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a conflict: %v", err)
	}
	f.apply(shopOf40)
	if strings.Contains(f.log.String(), "secret") || !strings.Contains(f.log.String(), "custom_page_html") {
		t.Errorf("the log has the value, or not the field: %s", f.log)
	}
}

// A rooms file that is broken or gone does not keep a process from starting while there is a record. Without one it does.
func TestStartWithBrokenRoomsFile(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	for _, damage := range []func(){func() { f.write("- {half") }, func() { os.Remove(f.path()) }} {
		damage()
		if !RecordExists(f.data()) {
			t.Error("there is no record")
		}
		f.start()
		f.shop(1, 10)
		if !strings.Contains(f.log.String(), "level=WARN") {
			t.Errorf("the file is not reported: %s", f.log)
		}
		if err := f.reload(); err == nil {
			t.Error("the file is reloaded")
		}
		f.shop(1, 10)
	}
	if err := os.RemoveAll(filepath.Join(f.data(), RecordFolder)); err != nil {
		t.Fatal(err)
	}
	if RecordExists(f.data()) {
		t.Error("there is a record")
	}
	if f.file, f.fileErr = f.read(); f.fileErr == nil {
		t.Fatal("the file is there")
	}
	if _, err := f.open(); err == nil {
		t.Error("a record is opened without a file")
	}
}

// The fields that Larder 0.1.0 had set are taken over once.
func TestLegacyFileIsTakenOverOnce(t *testing.T) {
	f := newRecordFixture(t)
	legacy := filepath.Join(f.data(), legacyRecordFile)
	if err := os.WriteFile(legacy, []byte(`{"shop": {"total_active_users": {"value": "20"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.shop(1, 20)
	if _, err := os.Stat(legacy + ".taken-over"); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(f.data(), RecordFolder)); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.shop(1, 10)
}

// A version that cannot be applied is stored, the one who made it is told so, and the rooms say which one they follow.
func TestRoomChangeThatCannotBeApplied(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	clear := f.obstruct(f.keys())
	newRoom := shopOf40 + "- {name: fresh, host: fresh.example.com, total_active_users: 1, new_users_per_minute: 1}\n"
	_, err := f.record.changer.Apply(t.Context(), ApplyRoomsRequest{Name: "new.yaml", Text: []byte(newRoom)})
	if !errors.As(err, new(*configstore.ApplyError)) || !strings.Contains(err.Error(), "version 2 is stored") {
		t.Errorf("%v", err)
	}
	f.shop(1, 10)
	if f.record.rejection(2) == nil || f.record.rejection(1) != nil {
		t.Error("it is not known which version is followed")
	}
	newest, _ := f.record.store.Get()
	if err := f.record.applyVersion(newest, f.change); err == nil || strings.Count(f.log.String(), "level=ERROR") != 1 {
		t.Errorf("the second attempt: %v; log: %s", err, f.log)
	}
	clear()
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	f.shop(3, 20)
	if f.record.rejection(3) != nil || f.rooms.Revision().Problem != "" {
		t.Error(f.rooms.Revision())
	}
}

// A command on a node that follows is based on the newest version, also if another node has made that a moment ago.
func TestHistoryIsOfTheNewestVersion(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *configstore.Store {
		t.Helper()
		var folders [2]*configstore.Backend
		for i, folder := range []string{"shared", name} {
			b, err := bucket.OpenFolder(filepath.Join(dir, folder))
			if err != nil {
				t.Fatal(err)
			}
			folders[i] = configstore.NewBackend(b, "version/", configstore.Checksum{})
		}
		s, err := configstore.Open(t.Context(), configstore.Options{Authority: folders[0], Copy: folders[1], Logger: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	leader, follower := open("leader"), &Record{logger: slog.New(slog.DiscardHandler), store: open("follower")}
	if _, err := leader.Propose(t.Context(), 0, configstore.Change{Content: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if all, _, err := follower.History(t.Context(), 0); err != nil || len(all) != 1 || !all[0].InForce {
		t.Errorf("%+v, %v", all, err)
	}
}
