package testkit

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Run runs every *.txt script at the root of scripts against the server at
// baseURL, over HTTP/1.1 with the bytes just as the script has them. The server
// must have published [Releases].
//
// A script is a list of requests, each with what is expected of its answer. Lines
// that are empty or begin with "#" mean nothing.
//
//	GET /ajax/libs/demo/1.0.0/demo.js     the method and the request target, as they go on the wire
//	> Accept-Encoding: br                 a header of the request
//	status 200                            the status code
//	header ETag == "x"                    a header: == != ~ (regular expression), each line of it joined with ", "
//	header Content-Encoding absent
//	body file demo/1.0.0/demo.js          the body, with its content coding undone, is that file
//	body == text, body ~ regexp           as header; the text is a Go string where it begins with a quote
//	body empty
//	body part 0-99 of $whole              the body is that part of one saved before
//	headers == $head                      all headers but Date are those saved before
//	save tag = header ETag                saves a header, the body, or all headers ("save head = headers")
//
// "$tag" stands for what was saved under that name in the same script.
func Run(t *testing.T, baseURL string, scripts fs.FS) {
	RunOver(t, rawHTTP1(baseURL), scripts)
}

// A Response is an answer as it came.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// A Transport sends one request.
type Transport func(method, target string, header []string) (*Response, error)

// RunOver is [Run] over some other way to the server.
func RunOver(t *testing.T, send Transport, scripts fs.FS) {
	t.Helper()
	names, err := fs.Glob(scripts, "*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	files := make(map[string][]byte)
	for _, r := range Releases() {
		for path, data := range r.Files {
			files[r.Package+"/"+r.Version+"/"+path] = data
		}
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			text, err := fs.ReadFile(scripts, name)
			if err != nil {
				t.Fatal(err)
			}
			s := &running{t: t, name: name, send: send, files: files, saved: make(map[string]string)}
			for i, line := range strings.Split(string(text), "\n") {
				s.line(i+1, line)
			}
			s.flush()
		})
	}
}

// running is a running script.
type running struct {
	t     *testing.T
	name  string
	send  Transport
	files map[string][]byte
	saved map[string]string

	at             int // line of the request
	method, target string
	header         []string
	response       *Response // nil until the request was sent
}

var requestLine = regexp.MustCompile(`^([A-Z]+) (/.*|\*)$`)

func (s *running) line(number int, line string) {
	s.t.Helper()
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return
	}
	if m := requestLine.FindStringSubmatch(line); m != nil {
		s.flush()
		s.at, s.method, s.target, s.header, s.response = number, m[1], m[2], nil, nil
		return
	}
	line = os.Expand(line, func(name string) string {
		if value, ok := s.saved[name]; ok {
			return value
		}
		return "$" + name
	})
	if header, ok := strings.CutPrefix(line, "> "); ok {
		s.header = append(s.header, header)
		return
	}
	if s.method == "" {
		s.t.Fatalf("%s:%d: there is no request before %q", s.name, number, line)
	}
	s.flush()
	if err := s.check(line); err != nil {
		s.t.Errorf("%s:%d: %s %s: %v", s.name, number, s.method, s.target, err)
	}
}

// flush sends the request if it was not sent.
func (s *running) flush() {
	s.t.Helper()
	if s.method == "" || s.response != nil {
		return
	}
	response, err := s.send(s.method, s.target, s.header)
	if err != nil {
		s.t.Fatalf("%s:%d: %s %s: %v", s.name, s.at, s.method, s.target, err)
	}
	s.response = response
}

func (s *running) check(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "status":
		return compare("the status", "==", strconv.Itoa(s.response.Status), rest)
	case "header":
		name, rest, _ := strings.Cut(rest, " ")
		if rest == "absent" {
			if lines, ok := s.response.Header[http.CanonicalHeaderKey(name)]; ok {
				return fmt.Errorf("%s is there: %q", name, lines)
			}
			return nil
		}
		op, want, _ := strings.Cut(rest, " ")
		return compare(name, op, s.field(name), want)
	case "headers":
		op, want, _ := strings.Cut(rest, " ")
		return compare("the headers", op, s.headers(), want)
	case "body":
		return s.checkBody(rest)
	case "save":
		name, source, _ := strings.Cut(rest, " = ")
		switch {
		case source == "body":
			s.saved[name] = strconv.Quote(string(s.response.Body))
		case source == "headers":
			s.saved[name] = s.headers()
		case strings.HasPrefix(source, "header "):
			s.saved[name] = s.field(strings.TrimPrefix(source, "header "))
		default:
			return fmt.Errorf("cannot save %q", source)
		}
		return nil
	}
	return fmt.Errorf("unknown check %q", line)
}

func (s *running) checkBody(rest string) error {
	body := s.response.Body
	verb, want, _ := strings.Cut(rest, " ")
	switch verb {
	case "empty":
		return compare("the body", "==", string(body), "")
	case "file":
		file, ok := s.files[want]
		if !ok {
			return fmt.Errorf("no release has the file %s", want)
		}
		c := coding.Identity
		if name := s.response.Header.Get("Content-Encoding"); name != "" {
			if c, ok = coding.Parse(name); !ok {
				return fmt.Errorf("unknown content coding %q", name)
			}
		}
		identity, err := coding.Decode(c, body, int64(len(file)))
		if err != nil {
			return err
		}
		if !bytes.Equal(identity, file) {
			return fmt.Errorf("the body is not the file %s", want)
		}
		return nil
	case "part":
		var first, last int
		span, whole, _ := strings.Cut(want, " of ")
		if _, err := fmt.Sscanf(span, "%d-%d", &first, &last); err != nil {
			return err
		}
		whole, err := strconv.Unquote(whole)
		if err != nil {
			return fmt.Errorf("the whole was not saved: %w", err)
		}
		return compare("the body", "==", string(body), strconv.Quote(whole[first:last+1]))
	}
	return compare("the body", verb, string(body), want)
}

func (s *running) field(name string) string {
	return strings.Join(s.response.Header[http.CanonicalHeaderKey(name)], ", ")
}

func (s *running) headers() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.response.Header)) {
		if name != "Date" {
			fmt.Fprintf(&b, "%s: %q; ", name, s.response.Header[name])
		}
	}
	return strings.TrimSpace(b.String())
}

func compare(what, op, got, want string) error {
	switch op {
	case "==", "!=":
		if unquoted, err := strconv.Unquote(want); err == nil && what == "the body" {
			want = unquoted
		}
		if (got == want) != (op == "==") {
			return fmt.Errorf("%s is %.300q, want %s %.300q", what, got, op, want)
		}
		return nil
	case "~":
		ok, err := regexp.MatchString(want, got)
		if err == nil && !ok {
			err = fmt.Errorf("%s is %.300q, want ~ %s", what, got, want)
		}
		return err
	}
	return fmt.Errorf("unknown operator %q", op)
}
