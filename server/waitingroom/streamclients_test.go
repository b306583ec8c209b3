package waitingroom

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// streamClientVariable has the test's own program hold event streams at a port. Clients are processes of their own, because a process may
// have so many open files, and the one that is measured needs them for its side of the connections.
const streamClientVariable = "LARDER_ROOM_TEST_STREAMS"

// clientStreams is how many event streams one process holds.
const clientStreams = 15_000

// serveOverConnections serves the streams over loopback. The clients are sockets that read nothing.
func serveOverConnections(b testing.TB, handler http.Handler, cookies []string, placed func()) func() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(&placeCounter{w, placed}, r)
	}))
	var ends []func()
	number := 1
	for some := range slices.Chunk(cookies, clientStreams) {
		cmd := exec.Command(os.Args[0], strconv.Itoa(number))
		number++
		cmd.Env = append(os.Environ(), fmt.Sprint(streamClientVariable, "=", server.Listener.Addr().(*net.TCPAddr).Port))
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = io.WriteString(in, strings.Join(some, "\n")+"\n\n")
		}
		if err != nil {
			b.Fatal(err)
		}
		if said, _ := bufio.NewReader(out).ReadString('\n'); said != "connected\n" {
			b.Fatalf("the clients say %q", said)
		}
		ends = append(ends, func() { _ = in.Close(); _ = cmd.Wait() })
	}
	return func() {
		for _, end := range ends {
			end()
		}
		server.Close()
	}
}

// holdStreams opens an event stream at a port for each cookie that its input names, in a line each, until an empty line. It keeps the
// streams open until the input ends. The first argument tells the client processes apart.
func holdStreams(port int) error {
	number, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "" {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		from := syscall.SockaddrInet4{Addr: [4]byte{127, 0, 1, byte(number)}} // an address has about 28,000 ports
		err = errors.Join(syscall.Bind(fd, &from), syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}))
		if err == nil {
			_, err = syscall.Write(fd, fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: shop\r\nAccept: text/event-stream\r\nCookie: %s\r\n\r\n", in.Text()))
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("connected")
	for in.Scan() {
	}
	return nil
}

// A placeCounter counts the places that are written to a client.
type placeCounter struct {
	http.ResponseWriter
	placed func()
}

func (w *placeCounter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *placeCounter) Write(text []byte) (int, error) {
	n, err := w.ResponseWriter.Write(text)
	if strings.HasPrefix(string(text), "event: place") {
		w.placed()
	}
	return n, err
}
