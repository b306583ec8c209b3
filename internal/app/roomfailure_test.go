package app

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
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
)

// obstruct puts a file in the place of a folder, and returns what takes it away again.
func (f *roomsFixture) obstruct(folder string) (clear func()) {
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
	f := newRoomsFixture(t)
	clear := f.obstruct(filepath.Join(f.settings.Data, roomsFolder, "version"))
	f.start()
	f.shop(0, 10)
	if err := f.record.reload(t.Context(), f.fresh()); err != nil {
		t.Errorf("the same file is not reloaded: %v", err)
	}
	f.write(shopOf40)
	if err := f.record.reload(t.Context(), f.fresh()); err == nil || !strings.Contains(err.Error(), "cannot be stored") {
		t.Errorf("another file is reloaded, and not stored: %v", err)
	}
	f.shop(0, 10)
	clear()
	if err := f.record.reload(t.Context(), f.fresh()); err != nil {
		t.Fatal(err)
	}
	f.shop(2, 40)
}

// A change by a command also stores the first version that could not be stored.
func TestSetWithoutStoredRecord(t *testing.T) {
	f := newRoomsFixture(t)
	clear := f.obstruct(filepath.Join(f.settings.Data, roomsFolder, "version"))
	f.start()
	clear()
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	f.shop(2, 20)
}

// follow has the process be a follower whose leader refuses all changes.
func (f *roomsFixture) follow() (asked *int) {
	asked = new(int)
	f.record.owner = &followedRooms{}
	f.record.offers = func(context.Context, ApplyRoomsRequest) (RoomVersion, error) {
		*asked++
		return RoomVersion{}, errors.New("the leader does not know the operation")
	}
	return asked
}

// A follower without a record, as while a leader runs Larder 0.1.0, reloads with the file that it goes by, and asks the leader
// only about another one.
func TestFollowerReloadsWithoutRecord(t *testing.T) {
	f := newRoomsFixture(t)
	f.obstruct(filepath.Join(f.settings.Data, roomsFolder, "version"))
	f.start()
	asked := f.follow()
	if err := f.record.reload(t.Context(), f.fresh()); err != nil || *asked != 0 {
		t.Errorf("the same file: %v, asked %d times", err, *asked)
	}
	f.write(shopOf40)
	if err := f.record.reload(t.Context(), f.fresh()); err == nil || *asked != 1 {
		t.Errorf("another file: %v, asked %d times", err, *asked)
	}
	f.shop(0, 10)
}

// A node without the cluster's key goes by its own file, whatever was in force before, and changes nothing by commands.
func TestRoomsWithoutClusterKey(t *testing.T) {
	f := newRoomsFixture(t)
	f.start()
	f.apply(shopOf50)
	f.shop(2, 50)
	f.node = &clusterNode{settings: f.settings, cluster: &cluster.Node{}, peers: peers{url: "https://node.example"}}
	f.settings.NodeURL = f.node.peers.url
	f.start()
	f.shop(1, 10)
	for version, file := range []string{2: shopOf40, 3: shopOf50, 4: shopOf40, 5: shopAndOwn} {
		if version < 2 {
			continue
		}
		f.write(file)
		if err := f.record.reload(t.Context(), f.fresh()); err != nil {
			t.Fatal(err)
		}
		f.shop(int64(version), map[string]int{shopOf40: 40, shopOf50: 50, shopAndOwn: 10}[file])
	}
	f.write(shopOf40)
	f.start()
	f.shop(6, 40)
	if _, ok := f.record.owner.(*followedRooms); !ok {
		t.Errorf("changes are made by %T", f.record.owner)
	}
	f.node = nil
	f.start() // the record of before is as it was
	if v, _ := f.record.store.Get(); v.Number != 2 || v.File != hashOf([]byte(shopOf50)) {
		t.Errorf("%+v", v.Change)
	}
}

// Values of fields, which may be secrets, are in no log and no origin.
func TestRoomValuesAreNotPrinted(t *testing.T) {
	f := newRoomsFixture(t)
	f.start()
	if err := f.set(map[string]string{"custom_page_html": "secret", "total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	v, _ := f.record.store.Get()
	if !strings.HasPrefix(v.Origin, "larder room set shop custom_page_html total_active_users on ") {
		t.Errorf("the origin is %q", v.Origin)
	}
	_, err := f.record.owner.undo(t.Context(), UndoRoomsRequest{Base: 1})
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
	f := newRoomsFixture(t)
	f.start()
	for _, damage := range []func(){func() { f.write("- {half") }, func() { os.Remove(f.settings.Rooms) }} {
		damage()
		if err := checkRooms(f.fresh()); err != nil {
			t.Errorf("a start fails: %v", err)
		}
		f.start()
		f.shop(1, 10)
		if !strings.Contains(f.log.String(), "level=WARN") {
			t.Errorf("the file is not reported: %s", f.log)
		}
		if err := f.record.reload(t.Context(), f.fresh()); err == nil {
			t.Error("the file is reloaded")
		}
		f.shop(1, 10)
	}
	if err := os.RemoveAll(filepath.Join(f.settings.Data, roomsFolder)); err != nil {
		t.Fatal(err)
	}
	if err := checkRooms(f.fresh()); err == nil {
		t.Error("a start without a record succeeds")
	}
	s := &roomsSite{settings: f.fresh(), logger: slog.New(slog.DiscardHandler), cluster: roomsAlone{}}
	if _, err := s.openRoomRecord(t.Context()); err == nil {
		t.Error("a record is opened without a file")
	}
}

// What Larder 0.1.0 had set is taken over once.
func TestLegacyFileIsTakenOverOnce(t *testing.T) {
	f := newRoomsFixture(t)
	legacy := filepath.Join(f.settings.Data, legacyFile)
	if err := os.WriteFile(legacy, []byte(`{"shop": {"total_active_users": {"value": "20"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.shop(1, 20)
	if _, err := os.Stat(legacy + ".taken-over"); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(f.settings.Data, roomsFolder)); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.shop(1, 10)
}

// A version that cannot be applied is stored, the one who made it is told so, and the rooms say which one they follow.
func TestRoomChangeThatCannotBeApplied(t *testing.T) {
	f := newRoomsFixture(t)
	f.start()
	clear := f.obstruct(f.settings.Keys)
	newRoom := shopOf40 + "- {name: fresh, host: fresh.example.com, total_active_users: 1, new_users_per_minute: 1}\n"
	_, err := f.record.owner.apply(t.Context(), ApplyRoomsRequest{Name: "new.yaml", Text: []byte(newRoom)})
	if !errors.As(err, new(*configstore.ApplyError)) || !strings.Contains(err.Error(), "version 2 is stored") {
		t.Errorf("%v", err)
	}
	f.shop(1, 10)
	if f.record.rejected(2) == nil || f.record.rejected(1) != nil {
		t.Error("it is not known which version is followed")
	}
	newest, _ := f.record.store.Get()
	if err := f.enforce(newest); err == nil || strings.Count(f.log.String(), "level=ERROR") != 1 {
		t.Errorf("the second attempt: %v; log: %s", err, f.log)
	}
	clear()
	if err := f.set(map[string]string{"total_active_users": "20"}); err != nil {
		t.Fatal(err)
	}
	f.shop(3, 20)
	if f.record.rejected(3) != nil || f.rooms.Revision().Problem != "" {
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
	leader, follower := open("leader"), &roomRecord{logger: slog.New(slog.DiscardHandler), store: open("follower")}
	if _, err := leader.Propose(t.Context(), 0, configstore.Change{Content: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if h, err := follower.history(t.Context(), 0); err != nil || len(h.Versions) != 1 || !h.Versions[0].InForce {
		t.Errorf("%+v, %v", h, err)
	}
}

// Rooms in the configuration file are the same file in any style.
func TestInlineRoomsHaveOneHash(t *testing.T) {
	dir := t.TempDir()
	hash := func(rooms string) string {
		t.Helper()
		file := filepath.Join(dir, "larder.yaml")
		if err := os.WriteFile(file, []byte(rooms), 0o600); err != nil {
			t.Fatal(err)
		}
		s := settings.New()
		s.ConfigFile = file
		if err := s.Load(nil); err != nil {
			t.Fatal(err)
		}
		read, on, err := s.ReadRooms()
		if err != nil || !on {
			t.Fatal(err)
		}
		return fileHash(read)
	}
	one := hash("rooms:\n- {name: shop, host: shop.example.com, total_active_users: 10, new_users_per_minute: 10}\n")
	for _, style := range []string{
		"rooms:\n  - name: shop # the shop\n    host: \"shop.example.com\"\n    new_users_per_minute: 10\n    total_active_users: 10\n",
		"rooms: [{name: &a shop, host: 'shop.example.com', total_active_users: 10, new_users_per_minute: 10}]\nname: Another\n",
	} {
		if got := hash(style); got != one {
			t.Errorf("%s has another hash", style)
		}
	}
	if hash("rooms:\n- {name: shop, host: shop.example.com, total_active_users: 11, new_users_per_minute: 10}\n") == one {
		t.Error("other rooms have the same hash")
	}
}

// newReload returns a process with a configuration file, of which reloadRooms is called by a reload.
func newReload(t *testing.T, reloadRooms func(context.Context) error) (r *roleRun, write func(string), reopened *int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "larder.yaml")
	write = func(config string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: One\n")
	s := settings.New()
	if err := s.Flags.Set("config", file); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(nil); err != nil {
		t.Fatal(err)
	}
	s.NewLogger(&strings.Builder{}, slog.LevelInfo)
	logger := slog.New(slog.DiscardHandler)
	reopened = new(int)
	s.ReadFiles()
	r = &roleRun{
		settings: s, logger: logger, supervisor: &supervisor{ending: t.Context()}, parts: parts.NewGroup(t.Context(), logger),
		restarts: restarts{begin: make(chan struct{})},
		reopen:   []func() error{func() error { *reopened++; return nil }},
	}
	r.supervisor.configuration.inForce.Set(s)
	r.subscribe(func(ctx context.Context, _ *settings.Settings) error { return reloadRooms(ctx) })
	r.ready.Store(true)
	return r, write, reopened
}

// A reload reopens the logs, also if the configuration cannot be taken up.
func TestReloadReopensLogs(t *testing.T) {
	refused := &SupersededError{"rooms.yaml", 1, 2}
	r, write, reopened := newReload(t, func(context.Context) error { return refused })
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.check); !errors.Is(err, refused) || *reopened != 1 {
		t.Errorf("reopened %d times, %v", *reopened, err)
	}
	write("no-such-setting: 1\n")
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.check); err == nil || *reopened != 2 {
		t.Errorf("reopened %d times, %v", *reopened, err)
	}
}

// A log that cannot be reopened keeps nothing else from coming into force, and does not matter if another run opens its own.
func TestReloadWithLogThatCannotBeReopened(t *testing.T) {
	r, write, _ := newReload(t, func(context.Context) error { return nil })
	gone := errors.New("the folder is gone")
	r.reopen = []func() error{func() error { return gone }}
	write("name: One\nlame-duck: 5s\n")
	if done, err := r.reload(t.Context(), Server{Logger: r.logger}.check); !errors.Is(err, gone) || !strings.Contains(err.Error(), "everything else was reloaded") || done.Restarted {
		t.Errorf("%+v, %v", done, err)
	}
	if got := r.supervisor.configuration.inForce.Get().LameDuck; got != 5*time.Second {
		t.Errorf("the lame duck is %v", got)
	}
	write("name: Another\n")
	if done, err := r.reload(t.Context(), Server{Logger: r.logger}.check); err != nil || !done.Restarted {
		t.Errorf("%+v, %v", done, err)
	}
	<-r.restarts.begin
}

// A reload that cannot begin, because of an upgrade, changes no rooms.
func TestReloadDuringUpgrade(t *testing.T) {
	changed, refused := 0, error(nil)
	r, write, _ := newReload(t, func(context.Context) error { changed++; return refused })
	write("name: Another\n")
	r.supervisor.changing.making.Lock()
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.check); !errors.Is(err, errUpgrading) || changed != 0 {
		t.Errorf("rooms were changed %d times, %v", changed, err)
	}
	r.supervisor.changing.making.Unlock()
	refused = errors.New("refused")
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.check); !errors.Is(err, refused) {
		t.Error(err)
	}
	if name := r.supervisor.configuration.inForce.Get().Name; name != "One" {
		t.Errorf("%s is in force, which was refused", name)
	}
	if !r.supervisor.changing.making.TryLock() {
		t.Error("a reload that fails keeps others out")
	}
}

// waitRole is a role that ends when its run restarts.
type waitRole struct{ run func(*roleRun) }

func (w waitRole) start(_ context.Context, r *roleRun) error {
	r.parts.Add(parts.Part{Name: "restart", Run: r.awaitRestart})
	w.run(r)
	return nil
}

// A reload that is under way when its run ends for another reason, such as a promotion, ends before the next run starts. That has the
// new configuration if the reload succeeds, and all of the old one if it does not.
func TestReloadWhileRunEnds(t *testing.T) {
	for _, succeeds := range []bool{true, false} {
		applying := make(chan struct{})
		r, write, _ := newReload(t, func(ctx context.Context) error {
			close(applying)
			<-ctx.Done() // the run ends
			if succeeds {
				return nil
			}
			return ctx.Err()
		})
		write("name: Another\nrooms: off\n")
		reloaded := make(chan error, 1)
		requested, err := r.do(waitRole{func(r *roleRun) {
			go func() {
				_, err := r.reload(context.Background(), Server{Logger: r.logger}.check)
				reloaded <- err
			}()
			<-applying
			r.restart(restart{role: mirrorRole{}})
		}})
		if err != nil || requested == nil || requested.role == nil {
			t.Fatalf("%+v follows, %v", requested, err)
		}
		next := newRoleRun(t.Context(), r.supervisor, true).settings // while the reload may go on
		if err := <-reloaded; (err == nil) != succeeds {
			t.Error(err)
		}
		want := map[bool]string{true: "Another, off", false: "One, "}[succeeds]
		if got := next.Name + ", " + next.Rooms; got != want || next != r.supervisor.configuration.inForce.Get() {
			t.Errorf("the next run has %q, want %q", got, want)
		}
		if _, err := r.reload(t.Context(), Server{Logger: r.logger}.check); !errors.Is(err, errNotReady) {
			t.Errorf("a reload by a run that has ended: %v", err)
		}
	}
}
