package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// turn loads one server once.
func (b *bench) turn(ctx context.Context, server *server, s scenario, k known, generator string, d time.Duration) (sample, error) {
	before, err := server.process.cpu()
	if err != nil {
		return sample{}, fmt.Errorf("%s is gone: %w", server.name, err)
	}
	var t turn
	var load time.Duration
	url := server.url() + s.requests[0].Path
	switch generator {
	case "wrk":
		t, load, err = runWrk(ctx, url, s.protocol.close, d)
	case "h2load":
		t, load, err = runH2load(ctx, url, s, "", d)
	case "h2load with log":
		t, load, err = runH2load(ctx, url, s, filepath.Join(b.tmp, "h2load.log"), d)
	default:
		t, load, err = runLeanJob(ctx, loadCore, leanJob{
			Address: server.address, Requests: k.requests, Lengths: k.lengths, Order: s.order, Connections: connections, Duration: d, Closing: s.protocol.close, Handshakes: s.protocol.handshakes,
		})
	}
	if err != nil {
		return sample{}, fmt.Errorf("%s, %s: %w", s.name, server.name, err)
	}
	after, err := server.process.cpu()
	if err != nil {
		return sample{}, fmt.Errorf("%s is gone: %w", server.name, err)
	}
	used := after - before
	return sample{
		turn: t, Busy: used.Seconds() / t.Took.Seconds(), Load: load.Seconds() / t.Took.Seconds(),
		CPU: used / time.Duration(max(1, t.Requests)),
	}, nil
}

func runWrk(ctx context.Context, url string, closing bool, d time.Duration) (turn, time.Duration, error) {
	// wrk counts in whole seconds, and stops at a signal with what it has.
	args := append([]string{"-t1", "-c" + strconv.Itoa(connections), "-d" + wholeSeconds(d), "--latency"}, arguments(closing)...)
	out, cpu, err := output(ctx, loadCore, nil, "wrk", append(args, url)...)
	if err != nil {
		return turn{}, 0, err
	}
	t, err := parseWrk(out)
	return t, cpu, err
}

// runH2load writes a log only where one is named: with a line for each request, h2load would take longer for the lines
// than a server for small files.
func runH2load(ctx context.Context, url string, s scenario, log string, d time.Duration) (turn, time.Duration, error) {
	args := append([]string{"-t1", "-c" + strconv.Itoa(s.protocol.connections), "-m" + strconv.Itoa(s.protocol.streams), "-D" + wholeSeconds(d)}, arguments(false)...)
	if log != "" {
		args = append(args, "--log-file="+log)
	}
	// h2load does not end where the turn ends before all its clients have connected.
	limited, cancel := context.WithTimeout(ctx, d+20*time.Second)
	defer cancel()
	out, cpu, err := output(limited, loadCore, nil, "h2load", append(args, url)...)
	if limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: h2load does not end", errLoad)
	}
	if err != nil {
		return turn{}, 0, err
	}
	var data []byte
	if log != "" {
		if data, err = readAndRemove(log); err != nil {
			return turn{}, 0, err
		}
	}
	t, err := parseH2load(out, data, s.length)
	return t, cpu, err
}

func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(int(max(1, d.Round(time.Second)/time.Second)))
}

func runLeanJob(ctx context.Context, core int, job leanJob) (turn, time.Duration, error) {
	program, err := os.Executable()
	if err != nil {
		return turn{}, 0, err
	}
	var in bytes.Buffer
	if err := gob.NewEncoder(&in).Encode(job); err != nil {
		return turn{}, 0, err
	}
	out, cpu, err := output(ctx, core, in.Bytes(), program, leanArgument)
	if err != nil {
		return turn{}, 0, err
	}
	t, err := decodeTurn(out)
	return t, cpu, err
}
