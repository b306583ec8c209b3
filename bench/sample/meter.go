//go:build linux

package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
)

// A meter is a proxy on loopback that counts what the program receives from upstream. It sees nothing where npm is
// configured with a proxy, or where the registry is on loopback itself.
type meter struct {
	listener net.Listener
	received atomic.Int64
}

func startMeter() (*meter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &meter{listener: listener}
	plain := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}
	go http.Serve(metered{listener, &m.received}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			plain.ServeHTTP(w, r)
			return
		}
		upstream, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer upstream.Close()
		client, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		go func() {
			io.Copy(upstream, client)
			upstream.Close()
		}()
		io.Copy(client, upstream)
	}))
	return m, nil
}

func (m *meter) close() { m.listener.Close() }

// env adds the proxy to an environment. What is there already and npm's own configuration go before it.
func (m *meter) env(env []string) []string {
	return append([]string{"HTTPS_PROXY=http://" + m.listener.Addr().String()}, env...)
}

// metered counts the bytes that its connections send.
type metered struct {
	net.Listener
	sent *atomic.Int64
}

func (l metered) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return meteredConn{c, l.sent}, nil
}

type meteredConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}
