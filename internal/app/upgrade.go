package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
)

// In an upgrade the process starts another one, of the program that is in its place by now, with the same arguments, and
// gives it its sockets. They go through this, over a pair of sockets of their own:
//
//	older process                            newer process
//	starts the newer one                     checks all but the store: settings, rooms, certificates, keys
//	                                         says isChecked, or what is wrong
//	rests the bot, ends what never ends,
//	and serves on meanwhile
//	accepts no more, closes the store
//	says mayOpen                             opens the store, begins to serve
//	                                         says isReady, or what is wrong
//	ends; or where the other did, opens
//	the store again and serves on
//
// If one of them dies, the other one notices that the pair is closed.

// A message is what one of the two sends the other.
type message struct {
	Is    stage  `json:"is"`
	Error string `json:"error,omitempty"` // what is wrong, of a process that ends
}

type stage string

const (
	isChecked stage = "checked"
	mayOpen   stage = "may open"
	isReady   stage = "ready"
	hasFailed stage = "failed"
)

// How long the newer process may take.
const (
	checkTimeout    = time.Minute
	takeoverTimeout = 10 * time.Minute // millions of files, after a crash
)

// An older process is the one whose place this one takes. The methods of nil do nothing.
type older struct{ conn net.Conn }

func newOlder(f *os.File) *older {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	return &older{conn}
}

// report reports to the older process how far this one is. If that fails, this one goes on without it.
func (o *older) report(is stage) error {
	if o != nil {
		_ = json.NewEncoder(o.conn).Encode(message{Is: is})
	}
	return nil
}

// fail reports why this process ends.
func (o *older) fail(err error) {
	if o != nil && err != nil {
		_ = json.NewEncoder(o.conn).Encode(message{Is: hasFailed, Error: err.Error()})
	}
}

// awaitStore reports that all but the store is right, and returns when the older process has closed that.
func (o *older) awaitStore(ctx context.Context) error {
	if o == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = o.conn.SetReadDeadline(time.Now()) })
	defer stop()
	_ = o.report(isChecked)
	var m message
	err := json.NewDecoder(o.conn).Decode(&m)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil || m.Is != mayOpen:
		return errors.New("the process that this one replaces has given up the upgrade")
	}
	return nil
}

// A newer process is one that is to take the place of this one.
type newer struct {
	cmd      *exec.Cmd
	conn     net.Conn
	messages chan message // closed when nothing more comes, because it has ended
	died     error        // why; set before
}

// program is the path of this program as of the start. A later file at that path may be another program.
var program = findProgram()

func findProgram() string {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return os.Args[0]
	}
	return path
}

// startNewer starts a process that gets all sockets.
func (v *supervisor) startNewer() (_ *newer, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "newer process"), os.NewFile(uintptr(pair[1]), "older process")
	syscall.CloseOnExec(pair[0])
	syscall.CloseOnExec(pair[1])
	n := &newer{cmd: exec.Command(program, os.Args[1:]...), messages: make(chan message)}
	defer func() {
		for _, f := range append(n.cmd.ExtraFiles, ours) {
			f.Close()
		}
		if err != nil && n.conn != nil {
			n.conn.Close()
		}
	}()
	for i, s := range v.sockets {
		f, err := s.file()
		if err != nil {
			theirs.Close()
			return nil, err
		}
		s.FD = firstExtra + i
		n.cmd.ExtraFiles = append(n.cmd.ExtraFiles, f)
	}
	n.cmd.ExtraFiles = append(n.cmd.ExtraFiles, theirs)
	text, err := json.Marshal(handing{Sockets: v.sockets, Asks: firstExtra + len(v.sockets), CaughtUp: v.node.caughtUp.Load()})
	if err != nil {
		return nil, err
	}
	n.cmd.Env = append(os.Environ(), handedVariable+"="+string(text))
	n.cmd.Stdout, n.cmd.Stderr = os.Stdout, os.Stderr
	if n.conn, err = net.FileConn(ours); err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("couldn't start %s: %w", program, err)
	}
	go n.listen()
	return n, nil
}

// listen receives messages of the process until it has ended, or has closed its end.
func (n *newer) listen() {
	defer close(n.messages)
	var failure string
	for from := json.NewDecoder(n.conn); ; {
		var m message
		if from.Decode(&m) != nil {
			break
		}
		if m.Is == hasFailed {
			failure = m.Error
			continue
		}
		n.messages <- m
		if m.Is == isReady {
			return // from now on it may outlive this one
		}
	}
	n.died = n.cmd.Wait()
	switch {
	case failure != "":
		n.died = errors.New(failure)
	case n.died == nil:
		n.died = errors.New("it exited; its output says why")
	default:
		n.died = fmt.Errorf("it exited (%w); its output says why", n.died)
	}
}

// await returns when the process says that it is that far.
func (n *newer) await(ctx context.Context, is stage, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case m, ok := <-n.messages:
		switch {
		case !ok:
			return n.died
		case m.Is != is:
			return fmt.Errorf("it sent %q, which this version does not understand", m.Is)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("it was not ready within %v", timeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end ends the process.
func (n *newer) end() {
	_ = n.cmd.Process.Kill()
	for range n.messages { // until it has ended
	}
	_ = n.conn.Close()
}

// errTaken is how a process ends whose place another one has taken.
var errTaken = errors.New("another process has taken over")

// errRestarted is about an upgrade during which the role restarted for another reason.
var errRestarted = errors.New("the role restarted during the upgrade, for another reason; try again")

// errUpgrading is the error of a reload or upgrade during an upgrade.
var errUpgrading = errors.New("an upgrade is under way; wait until it is done")

// OpUpgrade has the program that is in the place of this one by now take over. The answer comes when that has checked all
// but the store; then OpProcess returns which of the two runs.
const OpUpgrade Operation[struct{}, any, UpgradeStarted] = "upgrade"

// OpProcess returns which process runs.
const OpProcess Operation[struct{}, any, Process] = "process"

// UpgradeStarted is the process that is to take over.
type UpgradeStarted struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// addProcessOperations adds what `larder reload` and `larder upgrade` request.
func (r *roleRun) addProcessOperations(all operations, check func(*settings.Settings) error) {
	answer(all, OpReload, func(ctx context.Context, _ struct{}, _ func(any)) (Reloaded, error) { return r.reload(ctx, check) })
	answer(all, OpProcess, func(context.Context, struct{}, func(any)) (Process, error) {
		self := r.self
		self.Failed = r.supervisor.changing.failure()
		return self, nil
	})
	answer(all, OpUpgrade, func(ctx context.Context, _ struct{}, _ func(any)) (UpgradeStarted, error) {
		to, err := r.startUpgrade(ctx)
		return UpgradeStarted{r.self.PID, to}, err
	})
}

// startUpgrade starts a newer process, and once it has checked all but the store, has it take over.
func (r *roleRun) startUpgrade(ctx context.Context) (pid int, err error) {
	changing := &r.supervisor.changing
	if !changing.making.TryLock() {
		return 0, errUpgrading
	}
	defer func() {
		if err != nil {
			changing.making.Unlock()
			r.logger.Error("the upgrade failed; this process serves on", "err", err)
		}
	}()
	if !r.ready.Load() {
		return 0, errNotReady
	}
	changing.setFailure(nil)
	r.logger.Info("starting the process that is to take over", "program", program)
	n, err := r.supervisor.startNewer()
	if err != nil {
		return 0, err
	}
	if err := n.await(ctx, isChecked, checkTimeout); err != nil {
		n.end()
		return 0, fmt.Errorf("the new process cannot take over: %w", err)
	}
	how := restart{
		before: func() error { return r.supervisor.handOver(n, r.settings.Data) },
		abandon: func() {
			n.end()
			changing.setFailure(errRestarted)
			changing.making.Unlock()
		},
	}
	if !r.restartQuietly(how) {
		n.end()
		return 0, errRestarted
	}
	return n.cmd.Process.Pid, nil
}

// handOver has a newer process take over, after this one has closed the store. It returns errTaken, or nil if this process goes on, or
// was asked to stop before the newer one was ready: that one was not asked, so it is killed.
func (v *supervisor) handOver(n *newer, data string) error {
	defer v.changing.making.Unlock()
	err := v.ending.Err()
	if err == nil {
		v.readiness.set(errHandedOver)
		v.private.close()
		err = json.NewEncoder(n.conn).Encode(message{Is: mayOpen})
	}
	if err == nil {
		err = n.await(v.ending, isReady, takeoverTimeout)
	}
	if err == nil {
		v.sockets.keepFiles()
		v.late.succession.set(forwarder(data, v.logger))
		notifyManager("MAINPID=" + strconv.Itoa(n.cmd.Process.Pid))
		v.logger.Info("another process has taken over", "pid", n.cmd.Process.Pid)
		return errTaken
	}
	n.end()
	if v.ending.Err() != nil {
		return nil
	}
	v.changing.setFailure(fmt.Errorf("the new process could not take over: %w", err))
	v.logger.Error("the upgrade failed; this process serves on", "err", err)
	return v.private.open()
}

// upgradeWait is how long Upgrade waits for one of the two processes to answer.
const (
	upgradeWait  = 15 * time.Minute
	upgradeAgain = 50 * time.Millisecond
)

// Upgrade has the process on a data folder give its place to one of the program that is there now, and returns both when
// that serves.
func Upgrade(ctx context.Context, data string) (from, to Process, err error) {
	from, started, err := beginUpgrade(ctx, data)
	if err != nil {
		return from, to, err
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeWait)
	defer cancel()
	for {
		to, err = askProcess(ctx, data)
		switch {
		case err == nil && to.PID == started.To:
			return from, to, nil
		case err == nil && to.Failed != "":
			return from, to, fmt.Errorf("%s; process %d serves on", to.Failed, to.PID)
		case retry.Sleep(ctx, upgradeAgain) != nil:
			return from, to, fmt.Errorf("neither process %d nor process %d serves; their log says why: %w", started.From, started.To, context.Cause(ctx))
		}
	}
}

func beginUpgrade(ctx context.Context, data string) (from Process, started UpgradeStarted, err error) {
	client, err := Dial(ctx, data)
	if err != nil {
		return from, started, err
	}
	defer client.Close()
	if from, err = OpProcess.Ask(ctx, client, struct{}{}, nil); err == nil {
		started, err = OpUpgrade.Ask(ctx, client, struct{}{}, nil)
	}
	return from, started, err
}
