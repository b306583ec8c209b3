package waitingroom

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

const (
	shopAndOwn = `rooms:
- {name: shop, host: shop.example.com, total_active_users: 10, new_users_per_minute: 10}
- {name: own, host: own.example.com, total_active_users: 10, new_users_per_minute: 10, each_node: true}
`
	shopOf40 = "- {name: shop, host: shop.example.com, total_active_users: 40, new_users_per_minute: 10}\n"
	shopOf50 = "- {name: shop, host: shop.example.com, total_active_users: 50, new_users_per_minute: 10}\n"
)

// A recordFixture is a data folder with a rooms file, and what a process makes of both.
type recordFixture struct {
	*testing.T
	folder   string
	file     config.File
	fileErr  error
	log      *strings.Builder
	record   *Record
	rooms    *Rooms
	backends func(bucket.Bucket) RecordBackends
	leader   RecordChanger
	change   func([]config.Room) error
}

func newRecordFixture(t *testing.T) *recordFixture {
	t.Helper()
	f := &recordFixture{T: t, folder: t.TempDir(), backends: LocalRecord}
	for _, of := range []string{"data", "keys"} {
		if err := os.Mkdir(filepath.Join(f.folder, of), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.write(shopAndOwn)
	return f
}

func (f *recordFixture) data() string { return filepath.Join(f.folder, "data") }
func (f *recordFixture) keys() string { return filepath.Join(f.folder, "keys") }
func (f *recordFixture) path() string { return filepath.Join(f.folder, "rooms.yaml") }

func (f *recordFixture) write(file string) {
	f.Helper()
	if err := os.WriteFile(f.path(), []byte(file), 0o600); err != nil {
		f.Fatal(err)
	}
}

// start starts the process again.
func (f *recordFixture) start() {
	f.Helper()
	f.file, f.fileErr = f.read()
	f.run()
}

// read reads the rooms file as a start does.
func (f *recordFixture) read() (config.File, error) {
	text, err := os.ReadFile(f.path())
	return config.File{Name: f.path(), Text: text}, err
}

// reload reads the rooms file as a reload does.
func (f *recordFixture) reload() error {
	file, err := f.read()
	if err == nil {
		_, err = config.Parse(file.Name, file.Text)
	}
	if err != nil {
		return err
	}
	return f.record.Reload(f.Context(), file)
}

func (f *recordFixture) open() (*Record, error) {
	f.log = &strings.Builder{}
	return OpenRecord(f.Context(), RecordOptions{
		Data: f.data(), Node: "node", Backends: f.backends, Leader: f.leader, File: f.file, FileErr: f.fileErr, Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	})
}

// run begins a run of a role in the process.
func (f *recordFixture) run() {
	f.Helper()
	var err error
	if f.record, err = f.open(); err != nil {
		f.Fatal(err)
	}
	configured, err := f.record.Rooms()
	if err != nil {
		f.Fatal(err)
	}
	keys, err := OpenKeys(f.keys(), false)
	if err != nil {
		f.Fatal(err)
	}
	runtime := durable.New(testkit.NewShelf(f.T).Store, durable.Options{})
	f.Cleanup(func() {
		if err := runtime.Close(context.Background()); err != nil {
			f.Error(err)
		}
	})
	f.rooms, err = New(Options{
		Rooms: configured, Keys: keys, Runtime: runtime, Logger: f.record.logger, Revision: f.record.Revision, Known: func(string) bool { return false },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.change = func(rooms []config.Room) error {
		_, err := AddKnown(f.keys(), rooms)
		if err == nil {
			err = f.rooms.Change(rooms)
		}
		return err
	}
	f.record.Subscribe(func(rooms []config.Room) error { return f.change(rooms) })
}

// shop sees that the room has a limit, by a version of the settings.
func (f *recordFixture) shop(version int64, total int) {
	f.Helper()
	status, ok := f.rooms.Status("shop")
	if !ok || status.TotalActiveUsers != total || status.Settings.Version != version {
		f.Errorf("version %d with %d users is in force, want version %d with %d users; log: %s", status.Settings.Version, status.TotalActiveUsers, version, total, f.log)
	}
}

func (f *recordFixture) set(fields map[string]string) error {
	_, err := f.record.changer.Set(f.Context(), SetRoomRequest{Room: "shop", Fields: fields})
	return err
}

func (f *recordFixture) apply(text string) {
	f.Helper()
	if _, err := f.record.changer.Apply(f.Context(), ApplyRoomsRequest{Name: "applied.yaml", Text: []byte(text)}); err != nil {
		f.Fatal(err)
	}
}

func TestRoomsFileSeedsTheRecord(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	f.shop(1, 10)
	f.start()
	f.shop(1, 10)
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	f.shop(2, 20)
	if err := f.reload(); err != nil { // the file is the same, and what was set stays
		t.Error(err)
	}
	f.shop(2, 20)
	f.write(shopOf40) // while it does not run
	f.start()
	f.shop(3, 40)
	f.write(shopOf50)
	if err := f.reload(); err != nil {
		t.Fatal(err)
	}
	f.shop(4, 50)
	if err := f.reload(); err != nil {
		t.Error(err)
	}
	f.write(shopOf40)
	superseded := (*SupersededFileError)(nil)
	if err := f.reload(); !errors.As(err, &superseded) || superseded.Version != 3 || superseded.Current != 4 {
		t.Errorf("an older file: %v", err)
	}
	f.shop(4, 50)
	f.start()
	f.shop(4, 50)
	if !strings.Contains(f.log.String(), "level=WARN") || !strings.Contains(f.log.String(), "this file is version 3, replaced by version 4; restore it with `larder room apply FILE`") {
		t.Errorf("a start with an older file says: %s", f.log)
	}
	// Another file counts from the record on, and one that is edited without a trace of the last one does not.
	f.apply(shopAndOwn + "# again\n")
	f.shop(5, 10)
	if err := os.Remove(filepath.Join(f.data(), RecordFolder, lastRecordFile)); err != nil {
		t.Fatal(err)
	}
	f.write(shopOf50 + "# edited\n")
	f.start()
	f.shop(5, 10)
	if !strings.Contains(f.log.String(), "apply it with `larder room apply FILE`") {
		t.Errorf("a start with a file that is not offered says: %s", f.log)
	}
	f.write(shopOf50 + "# edited again\n")
	f.start()
	f.shop(6, 50)
}

// A file that is not valid as a whole changes nothing.
func TestInvalidRoomsFile(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	for name, file := range map[string]string{
		"half written": "rooms:\n- {name: shop, host: ",
		"a mistake":    shopOf40 + "- {name: sale, total_active_users: 1}\n",
		"too large":    shopOf40 + "#" + strings.Repeat(" ", config.MaxFile),
	} {
		f.write(file)
		if err := f.reload(); err == nil {
			t.Errorf("%s: was taken up", name)
		}
		if _, err := f.record.changer.Apply(t.Context(), ApplyRoomsRequest{Name: name, Text: []byte(file)}); err == nil {
			t.Errorf("%s: was applied", name)
		}
		f.shop(1, 10)
	}
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil { // it does not read the file
		t.Error(err)
	}
	f.shop(2, 20)
	if err := f.set(map[string]string{"custom_page_html": strings.Repeat("x", 5<<20)}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a value of 5 MiB: %v", err)
	}
	f.shop(2, 20)
}

// A change that cannot be stored is refused, and succeeds when it can be stored again.
func TestRoomChangeThatCannotBeStored(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	versions := filepath.Join(f.data(), RecordFolder, "version")
	if err := errors.Join(os.Rename(versions, versions+"-aside"), os.WriteFile(versions, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := f.set(map[string]string{"total_active_users": "20"}); err == nil {
		t.Error("a change was accepted that is not stored")
	}
	f.shop(1, 10)
	if err := errors.Join(os.Remove(versions), os.Rename(versions+"-aside", versions)); err != nil {
		t.Fatal(err)
	}
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Error(err)
	}
	f.shop(2, 20)
}

// If operators change one version at the same time, one succeeds, and the errors of the others say what to do.
func TestRoomChangesAtTheSameTime(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			q := SetRoomRequest{Room: "shop", Fields: map[string]string{"total_active_users": "20"}, Base: 1}
			_, errs[i] = f.record.changer.Set(t.Context(), q)
		})
	}
	all.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else if !errors.As(err, new(*configstore.ConflictError)) || !strings.Contains(err.Error(), "repeat the change if necessary") {
			t.Error(err)
		}
	}
	if done != 1 {
		t.Errorf("%d changes of version 1 succeeded", done)
	}
	f.shop(2, 20)
	// Nodes that reload the same file at the same time want the same.
	for range 2 {
		if v, err := f.record.changer.Apply(t.Context(), ApplyRoomsRequest{Name: "rooms.yaml", Text: []byte(shopOf40), Base: 2}); err != nil || v.Number != 3 {
			t.Errorf("version %d, %v", v.Number, err)
		}
	}
}

// A version that this release does not understand, as one of a later release, is not used: the one before stays in force, and
// the status says so.
func TestUnusableRoomVersion(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	content, err := json.Marshal(config.Document{Name: "rooms.yaml", Text: "- {name: shop, field_of_tomorrow: 5}"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.record.store.Propose(t.Context(), 1, configstore.Change{Origin: "a later release", Content: content}); !errors.As(err, new(*configstore.ApplyError)) {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		f.shop(1, 10)
		if v := f.rooms.Revision(); v.Unconfirmed || !strings.Contains(v.Problem, "version 2 cannot be used here") || !strings.Contains(f.log.String(), "level=ERROR") {
			t.Errorf("%+v, and the log: %s", v, f.log)
		}
	}
	check()
	f.start()
	check()
	if err := f.set(map[string]string{"total_active_users": "20"}); err == nil {
		t.Error("a field is set in a version that is not understood")
	}
	f.apply(shopOf40)
	f.shop(3, 40)
	if _, err := f.record.changer.Undo(t.Context(), UndoRoomsRequest{}); err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "field_of_tomorrow") {
		t.Errorf("an undo to the version that is not understood: %v", err)
	}
	f.shop(3, 40)
	if v, err := f.record.changer.Undo(t.Context(), UndoRoomsRequest{To: 1}); err != nil || v.Number != 4 {
		t.Errorf("version %d, %v", v.Number, err)
	}
	f.shop(4, 10)
}

// The default rooms seed a record, and do not replace one, also if a later release has other defaults.
func TestDefaultRoomsOnlySeed(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	f.file = config.File{Name: "the default rooms", Text: []byte(shopOf40), Default: true}
	f.run()
	f.shop(1, 10)
	if err := f.record.Reload(t.Context(), f.file); err != nil {
		t.Error(err)
	}
	f.shop(1, 10)
}

// A file that was edited counts from a reload or a start on, and not when the node takes another role.
func TestEditedRoomsFileAtPromotion(t *testing.T) {
	f := newRecordFixture(t)
	f.start()
	for _, edit := range []func(){func() { f.write(shopOf40) }, func() { f.write("- {half") }, func() { os.Remove(f.path()) }} {
		edit()
		f.run()
		f.shop(1, 10)
	}
	f.write(shopOf40)
	if err := f.reload(); err != nil {
		t.Fatal(err)
	}
	f.file, f.fileErr = f.read()
	f.shop(2, 40)
	f.run()
	f.shop(2, 40)
	if strings.Contains(f.log.String(), "level=WARN") {
		t.Error(f.log)
	}
}

func TestRoomRevisionTime(t *testing.T) {
	f := newRecordFixture(t)
	before := time.Now().Add(-time.Second)
	f.start()
	if v := f.rooms.Revision(); v.Time.Before(before) || v.Problem != "" || !strings.Contains(v.Origin, "rooms.yaml on ") {
		t.Errorf("%+v", v)
	}
}
