package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestParsePage(t *testing.T) {
	const text = `<!doctype html>
<base href="/sub/"><!-- <script src="comment.js"></script> -->
<script src="a.js" integrity="sha512-x" onload="x()"></script>
<SCRIPT TYPE="Module" SRC="https://cdn.example.com/m.js"></SCRIPT>
<script type="text/template" src="not.js"><script src="inner.js"></script>
<link rel="preload stylesheet" href="s.css"><link rel=preload as=script href=p.js><link rel=preload as=font href=f.woff>
<link rel="modulepreload" href="m2.js"><link rel=icon href=i.png>
<script type="importmap">{"imports": {"x": "./x.js", "y/": "https://cdn.example.com/y/", "bad/": "./no"},
 "scopes": {"/sub/deep/": {"x": "/deep-x.js"}}, "integrity": {"https://cdn.example.com/m.js": "sha384-m", "./x.js": "sha384-x"}}</script>
<script>alert(1)</script><script/src="slash.js"/></script>
<style>a{}</style><script type=module>import "x"</script><script src=" "></script>
<noscript><link rel=stylesheet href=no.css></noscript><textarea><script src=text.js></script></textarea>`
	address := &webURL{scheme: "https", host: "www.example.com", path: "/page.html"}
	p, err := parsePage(t.Context(), []byte(text), "", address)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"script 3 https://www.example.com/sub/a.js sha512-x", "inline 3 ", // the handler
		"module 4 https://cdn.example.com/m.js sha384-m",
		"style 6 https://www.example.com/sub/s.css", "preload 6 https://www.example.com/sub/p.js", "modulepreload 7 https://www.example.com/sub/m2.js",
		"inline 8 ", "inline 10 ", "script 10 https://www.example.com/sub/slash.js", "inline 11 ",
		"script 11 https://www.example.com/sub/", // as browsers read an address of spaces
	}
	slices.Sort(want)
	if got := listed(p); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if len(p.scripts) != 3 || len(p.styles) != 1 || len(p.modules) != 1 || p.handlers != 1 || len(p.notes) != 0 {
		t.Errorf("got %+v", p)
	}
	if got := p.scripts[1]; got != "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='" {
		t.Errorf("the hash of alert(1) is %s", got)
	}
	for name, want := range map[[2]string]string{
		{"x", "https://www.example.com/sub/m.js"}:        "https://www.example.com/sub/x.js",
		{"x", "https://www.example.com/sub/deep/m.js"}:   "https://www.example.com/deep-x.js",
		{"y/z.js", "https://www.example.com/"}:           "https://cdn.example.com/y/z.js",
		{"y/../../z.js", "https://www.example.com/"}:     "",
		{"bad/a.js", "https://www.example.com/"}:         "",
		{"unknown", "https://www.example.com/"}:          "",
		{"./b.js", "https://cdn.example.com/lib/a.js"}:   "https://cdn.example.com/lib/b.js",
		{"https://e.example/c.js", "https://e.example/"}: "https://e.example/c.js",
	} {
		if got := p.maps.resolve(name[0], name[1]); got != want {
			t.Errorf("%q in %s is %q, want %q", name[0], name[1], got, want)
		}
	}
	if _, err := parsePage(t.Context(), bytes.Repeat([]byte("<script src=a></script>"), maxReferences+1), "", address); err == nil {
		t.Error("any number of references is taken")
	}
	if _, err := parsePage(t.Context(), make([]byte, MaxPage+1), "", address); err == nil {
		t.Error("any number of bytes is taken")
	}
}

// listed are the references of a page in words, sorted.
func listed(p *page) []string {
	var all []string
	for _, r := range p.references {
		all = append(all, strings.TrimRight(fmt.Sprintf("%s %d %s %s", r.Kind, r.Line, r.URL, r.Integrity), " "))
		if r.URL == "" {
			all[len(all)-1] += " "
		}
		if r.problem != "" {
			all[len(all)-1] += " unproven"
		}
	}
	slices.Sort(all)
	return all
}

// TestHiddenScripts has the addresses that Chromium loads scripts from and a walk over tags does not see.
func TestHiddenScripts(t *testing.T) {
	const evil = "https://evil.example/x.js"
	utf16 := func(text string, order binary.AppendByteOrder, mark bool) string {
		var data []byte
		if mark {
			data = order.AppendUint16(data, 0xfeff)
		}
		for _, c := range text {
			data = order.AppendUint16(data, uint16(c))
		}
		return string(data)
	}
	script := "<script src=" + evil + "></script>"
	for name, tt := range map[string]struct{ html, contentType, want string }{
		"SVG":                     {"<svg><script href=" + evil + "></script></svg>", "", "script " + evil},
		"SVG with a namespace":    {"<svg><script xlink:href=" + evil + " /></svg>", "", "script " + evil},
		"backslashes":             {`<script src="\\evil.example\x.js"></script>`, "", "script " + evil},
		"a line break":            {"<script src='https://evil.exa\nmple/x.js'></script>", "", "script " + evil},
		"srcdoc":                  {`<iframe srcdoc="&lt;script src=` + evil + `>&lt;/script>"></iframe>`, "", "frame about:srcdoc"},
		"a data: frame":           {"<iframe src='data:text/html,<script src=" + evil + "></script>'></iframe>", "", "frame data:"},
		"SVG in a data: frame":    {"<iframe src='data:image/SVG+xml ; charset=utf-8,<svg xmlns=http://www.w3.org/2000/svg><script href=" + evil + "/></svg>'></iframe>", "", "frame data:"},
		"a picture in a frame":    {"<iframe src='data: IMAGE/png ;base64,AAAA'></iframe>", "", ""},
		"an object":               {"<object data=https://evil.example/x.html></object>", "", "frame https://evil.example/x.html"},
		"a refresh":               {"<meta http-equiv=Refresh content='0; URL=\"https://evil.example/\"'>", "", "frame https://evil.example/"},
		"a template":              {"<div><template shadowrootmode=open>" + script + "</template></div>", "", "script " + evil},
		"a template in SVG":       {"<svg><foreignObject><template></template></foreignObject></svg>" + script, "", "an error"},
		"a body that is replaced": {"<body><script type=module src=" + evil + "></script><frameset>", "", "module " + evil},
		"SVG that is replaced":    {"<svg><title>" + script + "</title></svg><frameset>", "", "an error"},
		"a base in SVG":           {"<svg><base href=https://evil.example/></svg><script src=x.js></script>", "", "script https://evil.example/x.js, script https://www.example.com/x.js"}, // a browser that looks ahead does not know
		"a select":                {"<select><svg><script href=" + evil + "></script></svg></select>", "", "script " + evil},
		"a language":              {"<script language=JavaScript1.2 src=" + evil + "></script>", "", "script " + evil},
		"UTF-16 with a mark":      {utf16(script, binary.LittleEndian, true), "", "script " + evil},
		"UTF-16, big-endian":      {utf16(script, binary.BigEndian, true), "text/html; charset=utf-8", "script " + evil},
		"UTF-16 by Content-Type":  {utf16(script, binary.LittleEndian, false), "text/html; charset=UTF-16", "script " + evil},
		"UTF-16 that is not said": {utf16(script, binary.LittleEndian, false), "", "an error"},
		"ISO-2022-JP":             {"<meta charset=iso-2022-jp>\x1b$B" + script, "", "an error"},
		"an escape":               {"\x1b(J" + script, "", "an error"},
		"XHTML":                   {script, "application/xhtml+xml", "an error"},
		"a legacy encoding":       {"<meta charset=gbk>\xb0\xa1" + script + "<script src=\xb0\xa1.js></script>", "", "script " + evil + ", script https://www.example.com/%EF%BF%BD%EF%BF%BD.js unproven"},
		"a nested comment":        {"<!--><script src=" + evil + "></script>-->", "", "script " + evil},
		"a long javascript: link": {"<a href='java\nscript:" + strings.Repeat("a", 2*maxURL) + "'></a>", "", "inline"},
		"a javascript: frame":     {"<iframe src=' java\nscript:alert(1)'></iframe>", "", "inline"},
		"a base":                  {"<base href='https:\\\\evil.example'><script src=x.js></script>", "", "script " + evil},
		"no script":               {"<textarea>" + script + "</textarea><!-- " + script + " --><script type=text/x-template>" + script + "</script>", "", ""},
	} {
		p, err := parsePage(t.Context(), []byte(tt.html), tt.contentType, &webURL{scheme: "https", host: "www.example.com", path: "/"})
		got := "an error"
		if err == nil {
			got = strings.Join(listed(p), ", ")
			got = strings.TrimSpace(strings.ReplaceAll(got, " 1 ", " "))
		}
		if got != tt.want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tt.want)
		}
	}
}

// A page of 8 MiB may stand for many more elements than it has tags.
func TestPageOfManyElements(t *testing.T) {
	var b strings.Builder
	b.WriteString("<p>")
	for i := range 400 {
		fmt.Fprintf(&b, "<b id=%d a b c d e f g h>", i)
	}
	b.WriteString(strings.Repeat("<p>x", 1<<18))
	if _, err := parsePage(t.Context(), []byte(b.String()), "", &webURL{scheme: "https", host: "a.example", path: "/"}); err == nil || !strings.Contains(err.Error(), "of memory") {
		t.Errorf("it was read: %v", err)
	}
}

func TestIsPage(t *testing.T) {
	for argument, want := range map[string]bool{
		"https://www.example.com": true, "https://www.example.com/shop/": true, "http://a.example/x.html?y=z.js": true, "index.HTM": true,
		"https://cdn.example.com/jquery.js": false, "https://cdn.example.com/ajax/libs/a/1/b.html": false, "jquery.min.js": false, "html": false,
	} {
		if got := IsPage(argument); got != want {
			t.Errorf("%s: %v", argument, got)
		}
	}
}

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "127.0.0.1": false, "::1": false, "10.0.0.1": false, "169.254.169.254": false,
		"100.64.0.1": false, "fd00::1": false, "::ffff:10.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false, "64:ff9b::a00:1": false, "64:ff9b:1::1": false, "fec0::1": false,
		"2002:a00:1::1": false, "2001::1": false, "198.18.0.1": false, "240.0.0.1": false, "192.0.0.8": false, "168.63.129.16": false, "fec0::1%eth0": false,
	} {
		if got := isPublic(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

func FuzzParsePage(f *testing.F) {
	f.Add([]byte("<base href=/x/><script src=a.js></script><link rel=stylesheet href=b.css>"))
	f.Add([]byte(`<script type=importmap>{"imports":{"a/":"./b/"},"scopes":{"/c/":{"d":"e:f"}},"integrity":{"g":1}}</script>`))
	f.Add([]byte("<script/><style></script></style>\x00<plaintext><script src=a>"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePage(t.Context(), data, "", &webURL{scheme: "https", host: "www.example.com", path: "/page.html"})
		if err != nil {
			return
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, r := range p.references {
			if _, err := url.Parse(r.URL); err != nil && r.problem == "" || r.Line < 1 || r.Line > lines {
				t.Errorf("%+v of %d lines: %v", r, lines, err)
			}
			if at := p.maps.resolve("a/x", r.URL); strings.ContainsAny(at, "\r\n") {
				t.Errorf("%q", at)
			}
		}
		for _, source := range p.scripts {
			if strings.ContainsAny(source, ";, ") {
				t.Errorf("%q", source)
			}
		}
	})
}
