package server

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/retry"
)

// accessLogStdout stands for standard output in place of a file's name.
const accessLogStdout = "-"

// The forms of a line.
const (
	AccessLogJSON     = "json"     // an object
	AccessLogCombined = "combined" // as of Apache and nginx
)

// How a line identifies the client.
const (
	AccessLogHashed = "hashed" // a pseudonym
	AccessLogPlain  = "plain"  // the address
	AccessLogNone   = "none"   // nothing
)

const (
	// accessLogInterval is the interval at which buffered lines are written.
	accessLogInterval = time.Second
	// accessLogBatch is how many buffered bytes are written without waiting for the interval. From maxAccessLogBuffer on, new lines are dropped.
	accessLogBatch, maxAccessLogBuffer = 64 << 10, 4 << 20
	// maxLoggedText is how many bytes of a target or a field a line has at most.
	maxLoggedText = 2 << 10
)

// AccessLogOptions says what is logged where. File is required. [OpenAccessLog] does not check Format and Addresses.
type AccessLogOptions struct {
	// File is appended to; "-" is standard output.
	File string
	// Format is [AccessLogJSON] or [AccessLogCombined]. Default: JSON.
	Format string
	// Addresses is [AccessLogHashed], [AccessLogPlain] or [AccessLogNone]. Default: Hashed.
	Addresses string
	// Logger reports lost lines, at most once a second. Default: nothing is logged.
	Logger *slog.Logger
}

// An AccessLog writes a line for each answered request to a file. It is safe for use by several goroutines.
//
// It buffers lines in memory and writes them once a second, or when 64 KiB are buffered, so no response waits for a disk.
// If the disk does not keep up, it drops lines and logs how many. Adding a line allocates nothing.
//
// A line names the client by a pseudonym, unless the operator asks for addresses: the beginning of a SHA-256 over a random key
// and the client's address (of IPv6 its /64). The log makes a new key for the first line, and for each line whose request
// came on a later day (UTC) than those of all lines before. It stores the key nowhere. So lines of one client on one day belong
// together, but for requests around midnight; those of two days do not, and no line leads back to an address.
type AccessLog struct {
	o      AccessLogOptions
	full   chan struct{} // has one if there is enough to write
	ending chan struct{} // closed by Close
	ended  chan struct{} // closed when run has

	mu      sync.Mutex
	lines   []byte // that are not written
	dropped uint64 // lines that there was no room for
	stamp   accessLogTime
	key     [sha256.Size]byte
	keyDay  int64 // since 1970, on which the key counts

	writing sync.Mutex // guards what follows
	to      io.WriteCloser
	spare   []byte    // written, for lines to come
	cut     bool      // the last line was written in part
	lost    uint64    // lost lines that were not reported yet
	warned  time.Time // when lost lines were reported last
}

// OpenAccessLog opens the file of the access log for appending, creates it if necessary, and starts the goroutine that writes to it. It does
// not create the file's folder. The caller must close the log with [AccessLog.Close].
func OpenAccessLog(o AccessLogOptions) (*AccessLog, error) {
	o.Format, o.Addresses = cmp.Or(o.Format, AccessLogJSON), cmp.Or(o.Addresses, AccessLogHashed)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	l := &AccessLog{o: o, full: make(chan struct{}, 1), ending: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if l.to, err = l.openFile(); err != nil {
		return nil, err
	}
	go l.run()
	return l, nil
}

// Part returns the part of a role that closes the log when the role stops.
func (l *AccessLog) Part() parts.Part { return parts.Part{Name: "access log", Stop: l.Close} }

// openFile opens the file of the log for appending, or returns standard output.
func (l *AccessLog) openFile() (io.WriteCloser, error) {
	if l.o.File == accessLogStdout {
		return os.Stdout, nil
	}
	f, err := os.OpenFile(l.o.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("couldn't open the access log: %w", err)
	}
	return f, nil
}

// Reopen opens the file again, after it was renamed for rotation, and closes the old one, to which it first writes the buffered lines. If the
// new file cannot be opened, it returns the error, and the log continues with the old one. An error of closing the old file is returned, too,
// but the new one is in use. For standard output it does nothing.
func (l *AccessLog) Reopen() error {
	if l.o.File == accessLogStdout {
		return nil
	}
	to, err := l.openFile()
	if err != nil {
		return err
	}
	l.flush()
	l.writing.Lock()
	defer l.writing.Unlock()
	old := l.to
	l.to, l.cut = to, false
	return old.Close()
}

// run writes the buffered lines every second, and when 64 KiB are buffered, until Close, which writes the last ones.
func (l *AccessLog) run() {
	defer close(l.ended)
	tick := time.NewTicker(accessLogInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.full:
		case <-l.ending:
			return
		}
		l.flush()
	}
}

// Close writes the buffered lines and closes the file, unless that is standard output. It returns only an error of closing; lines that cannot
// be written are lost and logged. It must be called once. Lines of later requests are never written.
func (l *AccessLog) Close() error {
	close(l.ending)
	<-l.ended
	l.flush()
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.o.File == accessLogStdout {
		return nil
	}
	return l.to.Close()
}

// flush writes the buffered lines to the file. After an error it drops the lines that were not written completely. It logs, at most once a
// second, how many lines were lost here and in add.
func (l *AccessLog) flush() {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	lines, dropped := l.lines, l.dropped
	l.lines, l.dropped = l.spare[:0], 0
	l.mu.Unlock()
	l.spare = lines
	var err error
	if l.cut && len(lines) > 0 {
		_, err = l.to.Write([]byte("\n"))
		l.cut = err != nil
	}
	if err == nil {
		var n int
		if n, err = l.to.Write(lines); err != nil {
			l.cut = l.cut || n > 0 && lines[n-1] != '\n'
			dropped += uint64(bytes.Count(lines[n:], []byte{'\n'}))
		}
	} else {
		dropped += uint64(bytes.Count(lines, []byte{'\n'}))
	}
	if cap(l.spare) > maxAccessLogBuffer/4 {
		l.spare = nil
	}
	if l.lost += dropped; l.lost > 0 && time.Since(l.warned) >= time.Second {
		l.o.Logger.Warn("lines of the access log are lost", "lines", l.lost, "err", cmp.Or(err, errAccessLogBehind))
		l.lost, l.warned = 0, time.Now()
	}
}

var errAccessLogBehind = errors.New("the file takes them too slowly")

// add buffers a line for a request. It drops the line if the file is so slow that 4 MiB are buffered.
func (l *AccessLog) add(e *accessLogEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= maxAccessLogBuffer {
		l.dropped++
		return
	}
	before := len(l.lines)
	if l.o.Format == AccessLogCombined {
		l.lines = l.appendCombined(l.lines, e)
	} else {
		l.lines = l.appendJSON(l.lines, e)
	}
	if before < accessLogBatch && len(l.lines) >= accessLogBatch {
		retry.Wake(l.full)
	}
}

// appendClient appends the client to b by AccessLogOptions.Addresses: a pseudonym of 16 hexadecimal digits, the address, or "-" if it is
// unknown or not logged. at is the time when the request came. For a pseudonym on a later day (UTC) than those of all before, appendClient
// makes a new key, which counts for requests from before midnight, too, that are logged after that. The caller holds mu.
func (l *AccessLog) appendClient(b []byte, at time.Time, addr netip.Addr) []byte {
	if !addr.IsValid() || l.o.Addresses == AccessLogNone {
		return append(b, '-')
	}
	if l.o.Addresses == AccessLogPlain {
		return addr.Unmap().AppendTo(b)
	}
	if day := at.Unix() / (24 * 60 * 60); day > l.keyDay {
		l.keyDay = day
		rand.Read(l.key[:]) //nolint:errcheck // it never fails
	}
	var text [sha256.Size + 16]byte
	copy(text[:], l.key[:])
	whole := requests.ClientAt(addr).Addr().As16()
	copy(text[sha256.Size:], whole[:])
	sum := sha256.Sum256(text[:])
	return hex.AppendEncode(b, sum[:8])
}
