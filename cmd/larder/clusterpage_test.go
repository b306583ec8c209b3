package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestClusterPage runs the commands by which docs/cluster.md makes three nodes of one, in one shell, as they are written
// there. Only the ports are others.
func TestClusterPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	blocks := commandsOf(t, "cluster.md")["From one machine to three"]
	says := [][]string{
		{"cluster: leader, ", " leader "},
		{},
		{"cluster: follower, ", " leader ", " candidate ", " follower "},
		{"jquery 3.2.1: published", "jquery 3.2.1 is withdrawn"},
		{"200"},
	}
	if len(blocks) != len(says) {
		t.Fatalf("the page has %d blocks of commands, and %d are expected", len(blocks), len(says))
	}
	registry := npmtest.New(t)
	for i := range 12 { // the bot begins with the newest ones
		registry.Add("jquery", fmt.Sprintf("3.2.%d", i+1), time.Date(2024, 5, 17+i, 8, 30, 0, 0, time.UTC), map[string]string{"dist/jquery.js": "jquery();\n"})
	}

	d := &drill{T: t, dir: t.TempDir()}
	for _, port := range []string{"8080", "9080", "9443", "8082", "9082", "9444", "8083", "9083", "9445"} {
		d.names = append(d.names, "127.0.0.1:"+port, testkit.UnusedAddress(t))
	}
	const mark = "-- end of block"
	script := ""
	for _, block := range blocks {
		script += block + "echo '" + mark + "'\n"
	}
	cmd := d.command(script + "wait\n")
	cmd.Env = append(cmd.Env, registry.Env(d.dir)...)
	for i, v := range cmd.Env { // the page's commands say where they listen
		if strings.HasPrefix(v, "LARDER_LISTEN=") || strings.HasPrefix(v, "LARDER_PRIVATE_LISTEN=") || strings.HasPrefix(v, "LARDER_CATALOGUE=") {
			cmd.Env[i] = "HOME=" + d.dir
		}
	}
	read, write, err := os.Pipe()
	d.must(err)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = write, write, &syscall.SysProcAttr{Setpgid: true}
	d.must(cmd.Start())
	d.must(write.Close())
	signal := func(s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) }
	late := time.AfterFunc(5*time.Minute, func() { signal(syscall.SIGKILL) })
	defer late.Stop()
	ended := make(chan struct{})
	go func() { // where a command fails, the shell does not wait for the nodes
		defer close(ended)
		_ = cmd.Wait()
		signal(syscall.SIGTERM)
	}()
	t.Cleanup(func() {
		signal(syscall.SIGKILL)
		<-ended
		read.Close()
	})

	done, said := 0, ""
	for lines := bufio.NewScanner(read); lines.Scan(); { // until all processes have ended
		if lines.Text() != mark {
			said += lines.Text() + "\n"
			continue
		}
		for _, want := range says[done] {
			if !strings.Contains(said, want) {
				t.Errorf("these commands do not say %q:\n%s\nbut\n%s", want, blocks[done], said)
			}
		}
		if done++; done == len(blocks) {
			signal(syscall.SIGTERM)
		}
		said = ""
	}
	if done < len(blocks) {
		t.Errorf("one of these commands fails:\n%s\n%s", blocks[done], said)
	}
}
