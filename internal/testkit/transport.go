package testkit

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// RoundTrip sends a request, follows no redirect, and reads the whole answer.
func RoundTrip(t testing.TB, over http.RoundTripper, r *http.Request) (*http.Response, string) {
	t.Helper()
	answer, err := over.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer, string(Body(t, answer))
}

// rawHTTP1 sends each request over a connection of its own, byte for byte.
func rawHTTP1(baseURL string) Transport {
	return func(method, target string, header []string) (*Response, error) {
		base, err := url.Parse(baseURL)
		if err != nil {
			return nil, err
		}
		conn, err := net.Dial("tcp", base.Host)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return nil, err
		}
		var request strings.Builder
		fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, base.Host)
		for _, line := range header {
			request.WriteString(line + "\r\n")
		}
		request.WriteString("\r\n")
		if _, err := io.WriteString(conn, request.String()); err != nil {
			return nil, err
		}
		return read(http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method}))
	}
}

// Client returns a transport over an HTTP client, for HTTP/2. It leaves the
// request target as it is; the client must not follow redirects nor decompress.
func Client(client *http.Client, baseURL string) Transport {
	return func(method, target string, header []string) (*Response, error) {
		base, err := url.Parse(baseURL)
		if err != nil {
			return nil, err
		}
		path, query, _ := strings.Cut(target, "?")
		base.Opaque, base.RawQuery = "//"+base.Host+path, query
		request := &http.Request{Method: method, URL: base, Host: base.Host, Header: make(http.Header)}
		for _, line := range header {
			name, value, _ := strings.Cut(line, ":")
			request.Header.Add(name, strings.TrimSpace(value))
		}
		return read(client.Do(request))
	}
}

func read(r *http.Response, err error) (*Response, error) {
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the body of a %s answer: %w", r.Status, err)
	}
	return &Response{Status: r.StatusCode, Header: r.Header, Body: body}, nil
}
