// Package stage has what programs need that play on the loopback with real processes: starting and ending them, what they
// use, and certificates.
package stage

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Start starts a program and returns what ends it.
func Start(c *exec.Cmd) (stop func(), err error) {
	if err := c.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = c.Wait()
		close(done)
	}()
	return func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			_ = c.Process.Kill()
			<-done
		}
	}, nil
}

// AwaitURL waits until a process of Larder that was started with [Start] writes its ready file, and returns the URL in that.
func AwaitURL(ctx context.Context, p *os.Process, readyFile string) (string, error) {
	for {
		if url, err := os.ReadFile(readyFile); err == nil {
			return strings.TrimSpace(string(url)), nil
		}
		if p.Signal(syscall.Signal(0)) != nil {
			return "", errors.New("larder ended before it was ready")
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Certificate makes one for addresses and names of the loopback, as cert.pem and key.pem of a folder. Files that are there are
// replaced.
func Certificate(folder string, hosts ...string) (*x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 1, 0)}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		path := filepath.Join(folder, name)
		err = errors.Join(err, os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600), os.Rename(path+".new", path))
	}
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Usage is what a process has used so far.
type Usage struct {
	At        time.Time
	Processor time.Duration
	Memory    int64 // resident, in bytes
	Files     int   // open descriptors, without tables
	Tables    int   // open tables and blob files of a store, of which Pebble keeps up to 1,000 open
}

// UsageOf reads what a process has used; it is 0 where the process has ended.
func UsageOf(pid int) Usage {
	u := Usage{At: time.Now()}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, ok := strings.Cut(string(stat), ") "); ok {
		if fields := strings.Fields(rest); len(fields) > 12 {
			user, _ := strconv.ParseInt(fields[11], 10, 64)
			system, _ := strconv.ParseInt(fields[12], 10, 64)
			u.Processor = time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			u.Memory = kilobytes << 10
		}
	}
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	files, _ := os.ReadDir(folder)
	for _, file := range files {
		target, _ := os.Readlink(filepath.Join(folder, file.Name()))
		switch filepath.Ext(strings.TrimSuffix(target, " (deleted)")) {
		case ".sst", ".blob":
			u.Tables++
		default:
			u.Files++
		}
	}
	return u
}

// Since returns how many processors were busy since an earlier usage.
func (u Usage) Since(earlier Usage) float64 {
	return (u.Processor - earlier.Processor).Seconds() / u.At.Sub(earlier.At).Seconds()
}
