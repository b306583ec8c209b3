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

// In an upgrade the process starts another one, of the program that is now at the path of its own, with the same arguments, and
// gives it its sockets. They go through these steps, and send messages over a pair of connected sockets:
//
//	older process                            newer process
//	starts the newer one                     checks all but the store: settings, rooms, certificates, keys
//	                                         sends isChecked, or what is wrong
//	stops the bot, closes event streams, and
//	continues to serve
//	accepts no more, closes the store
//	sends mayOpen                            opens the store, begins to serve
//	                                         sends isReady, or what is wrong
//	ends; or if the newer one has failed,
//	opens the store again and serves on
//
// If one of them ends, the other one notices that the connection is closed.

// A message is what one of the two processes sends to the other, as JSON.
type message struct {
	Is    stage  `json:"is"`
	Error string `json:"error,omitempty"` // with hasFailed: why the newer process ends
}

// A stage is how far an upgrade has come, as the two processes report to each other.
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

// An olderProcess is the process that this one replaces in an upgrade. The methods of nil do nothing.
type olderProcess struct{ conn net.Conn }

// report sends m to the older process, if any. If that is gone, this one continues without it.
func (o *olderProcess) report(m message) {
	if o != nil {
		_ = json.NewEncoder(o.conn).Encode(m)
	}
}

// reportFailure reports to the older process why this one ends, if err is not nil.
func (o *olderProcess) reportFailure(err error) {
	if err != nil {
		o.report(message{Is: hasFailed, Error: err.Error()})
	}
}

// awaitStore reports to the older process that everything but the store was checked, and waits until it has closed the store. It
// returns nil then, and at once without an older process. It returns an error if ctx ends or the older process gives up.
func (o *olderProcess) awaitStore(ctx context.Context) error {
	if o == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = o.conn.SetReadDeadline(time.Now()) })
	defer stop()
	o.report(message{Is: isChecked})
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

// A newerProcess is the process that is to replace this one in an upgrade.
type newerProcess struct {
	cmd      *exec.Cmd
	conn     net.Conn
	messages chan message // closed after isReady, or when the process has ended
	died     error        // why the process has ended; set before messages is closed
}

// program is the path of this program as of the start. A later file at that path may be another program.
var program = findProgram()

// findProgram returns the absolute path of this program; if it cannot be found, the name by which it was called.
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

// startNewerProcess starts the program that will replace this process, with duplicates of all sockets and a connection for
// messages. It sets FD in v.sockets. It receives the messages in a goroutine, and does not wait for the process. The caller
// calls kill, unless the process takes over.
func (v *supervisor) startNewerProcess() (_ *newerProcess, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "newer process"), os.NewFile(uintptr(pair[1]), "older process")
	syscall.CloseOnExec(pair[0])
	syscall.CloseOnExec(pair[1])
	n := &newerProcess{cmd: exec.Command(program, os.Args[1:]...), messages: make(chan message)}
	defer func() {
		for _, f := range append(n.cmd.ExtraFiles, ours) {
			f.Close()
		}
		if err != nil && n.conn != nil {
			n.conn.Close()
		}
	}()
	for i, s := range v.sockets {
		f, err := s.duplicate()
		if err != nil {
			theirs.Close()
			return nil, err
		}
		s.FD = firstExtra + i
		n.cmd.ExtraFiles = append(n.cmd.ExtraFiles, f)
	}
	n.cmd.ExtraFiles = append(n.cmd.ExtraFiles, theirs)
	text, err := json.Marshal(handover{Sockets: v.sockets, Asks: firstExtra + len(v.sockets), CaughtUp: v.node.caughtUp.Load()})
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
	go n.receiveMessages()
	return n, nil
}

// receiveMessages sends the messages of the newer process to n.messages until it is ready or has ended, and then closes the
// channel. If it has ended, it sets n.died to the reason before. It waits until each message is received.
func (n *newerProcess) receiveMessages() {
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

// awaitStage waits until the newer process reports that it has reached the stage is. It returns an error if the process ends,
// reports another stage, timeout passes or ctx ends. It does not end the process.
func (n *newerProcess) awaitStage(ctx context.Context, is stage, timeout time.Duration) error {
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

// kill kills the newer process, waits until it has ended, unless it has reported that it is ready, and closes the connection to
// it.
func (n *newerProcess) kill() {
	_ = n.cmd.Process.Kill()
	for range n.messages { // until it has ended
	}
	_ = n.conn.Close()
}

// errTaken is returned by [restart.before] after another process has taken over; this process then ends without an error.
var errTaken = errors.New("another process has taken over")

// errRestarted is the error of an upgrade during which the role restarted for another reason.
var errRestarted = errors.New("the role restarted during the upgrade, for another reason; try again")

// errUpgrading is the error of an upgrade, or of a reload that restarts the role, while an upgrade or such a reload is under
// way.
var errUpgrading = errors.New("an upgrade is under way; wait until it is done")

// OpUpgrade starts the program that is now at the path of this one, which takes over. It responds when that has checked
// everything but the store; from then on [OpProcess] returns which of the two runs.
const OpUpgrade Operation[struct{}, any, UpgradeStarted] = "upgrade"

// OpProcess returns the state of the process that has the data folder open.
const OpProcess Operation[struct{}, any, Process] = "process"

// UpgradeStarted has the ids of the two processes of an upgrade.
type UpgradeStarted struct {
	From int `json:"from"` // of the older process
	To   int `json:"to"`   // of the newer one, which has passed its checks
}

// addProcessOperations adds to all the operations of `larder reload` and `larder upgrade`, and the one that describes this
// process. check returns an error for settings with which a reload must fail.
func (r *roleRun) addProcessOperations(all operations, check func(*settings.Settings) error) {
	addRequest(all, OpReload, func(ctx context.Context, _ struct{}) (Reloaded, error) { return r.reload(ctx, check) })
	addRequest(all, OpProcess, func(context.Context, struct{}) (Process, error) { return r.process(), nil })
	addRequest(all, OpUpgrade, func(ctx context.Context, _ struct{}) (UpgradeStarted, error) {
		to, err := r.startUpgrade(ctx)
		return UpgradeStarted{r.self.PID, to}, err
	})
}

// process returns the description of this process, with the failure of its last upgrade or reload.
func (r *roleRun) process() Process {
	self := r.self
	self.Failed = r.supervisor.changing.failure()
	return self
}

// startUpgrade starts a newer process, waits until it has checked everything but the store, and requests the restart in which
// it takes over. It does not wait for that. It returns the id of the newer process. After an error the newer process is killed,
// and this one continues to serve; the error is logged and returned, and not recorded in the status of the process.
// errUpgrading says that another upgrade or reload is under way, errNotReady that no run serves yet, errRestarted that another
// restart came first.
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
	n, err := r.supervisor.startNewerProcess()
	if err != nil {
		return 0, err
	}
	if err := n.awaitStage(ctx, isChecked, checkTimeout); err != nil {
		n.kill()
		return 0, fmt.Errorf("the new process cannot take over: %w", err)
	}
	takeover := restart{
		before: func() error { return r.supervisor.handOver(n, r.settings.Data) },
		abandon: func() {
			n.kill()
			changing.setFailure(errRestarted)
			changing.making.Unlock()
		},
	}
	if !r.requestQuietRestart(takeover) {
		n.kill()
		return 0, errRestarted
	}
	return n.cmd.Process.Pid, nil
}

// handOver has the newer process n take over, after the run of this one has closed the store in the folder data. Once n serves,
// late requests are forwarded to it, the service manager receives its process id, and handOver returns errTaken. Otherwise n
// failed or this process was asked to stop; then handOver kills n, and returns nil, or why the private address cannot be served
// again. It records a failure of n in the status of the process. It unlocks v.changing.making, which startUpgrade has locked.
func (v *supervisor) handOver(n *newerProcess, data string) error {
	defer v.changing.making.Unlock()
	err := v.ending.Err()
	if err == nil {
		v.readiness.setState(errHandedOver)
		v.private.close()
		err = json.NewEncoder(n.conn).Encode(message{Is: mayOpen})
	}
	if err == nil {
		err = n.awaitStage(v.ending, isReady, takeoverTimeout)
	}
	if err == nil {
		v.sockets.keepFiles()
		v.late.succession.set(newForwarder(data, v.logger))
		notifyManager("MAINPID=" + strconv.Itoa(n.cmd.Process.Pid))
		v.logger.Info("another process has taken over", "pid", n.cmd.Process.Pid)
		return errTaken
	}
	n.kill()
	if v.ending.Err() != nil {
		return nil
	}
	v.changing.setFailure(fmt.Errorf("the new process could not take over: %w", err))
	v.logger.Error("the upgrade failed; this process serves on", "err", err)
	return v.private.open()
}

// upgradeTimeout is how long [Upgrade] waits until one of the two processes serves, and [Reload] and [Repair] until the role has
// restarted. They request the state of the process every upgradePoll.
const (
	upgradeTimeout = 15 * time.Minute
	upgradePoll    = 50 * time.Millisecond
)

// Upgrade replaces the process that has the folder data open by a new process of the program that is now at its path, and
// returns both when the new one serves. It returns an error if the old one continues, or neither serves within upgradeTimeout.
// With an error, from and to have what is known of the processes.
func Upgrade(ctx context.Context, data string) (from, to Process, err error) {
	client, err := dialRunning(ctx, data)
	if err != nil {
		return from, to, err
	}
	var started UpgradeStarted
	if from, err = OpProcess.Ask(ctx, client, struct{}{}, nil); err == nil {
		started, err = OpUpgrade.Ask(ctx, client, struct{}{}, nil)
	}
	if err = errors.Join(err, client.Close()); err != nil {
		return from, to, err
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	for {
		to, err = requestProcess(ctx, data)
		switch {
		case err == nil && to.PID == started.To:
			return from, to, nil
		case err == nil && to.Failed != "":
			return from, to, fmt.Errorf("%s; process %d serves on", to.Failed, to.PID)
		case retry.Sleep(ctx, upgradePoll) != nil:
			return from, to, fmt.Errorf("neither process %d nor process %d serves; their log says why: %w", started.From, started.To, context.Cause(ctx))
		}
	}
}
