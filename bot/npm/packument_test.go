package npm

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestDecodePackument(t *testing.T) {
	const testValue, testMembers = 10_000, 100
	tests := []struct {
		name, in string
		field    string // of the error, "-" for none
	}{
		{"least", `{"versions":{}}`, "-"},
		{"whole", `{"_id":"a","name":"a","dist-tags":{"latest":"1"},"versions":{"1":{"version":"1","dist":{"tarball":"u"}}},"time":{"1":"2020-01-02T03:04:05.678Z"},"x":[1,{"y":null}]}`, "-"},
		{"times first", `{"time":{"1":"2020-01-02T03:04:05Z"},"versions":{"1":{"dist":{"tarball":"u"}}}}`, "-"},
		{"null parts", `{"dist-tags":null,"versions":{},"time":null}`, "-"},
		{"odd time", `{"versions":{},"time":{"1":"yesterday"}}`, "-"},
		{"unpublished", `{"name":"a","time":{"1":"2020-01-02T03:04:05Z","unpublished":{"time":"2021-01-02T03:04:05Z","versions":["1"]}}}`, "-"},

		{"nothing", ``, ""},
		{"space", ` `, ""},
		{"a page", `<html>`, ""},
		{"array", `[]`, ""},
		{"null", `null`, ""},
		{"number", `12`, ""},
		{"error", `{"error":"not found"}`, "versions"},
		{"another's", `{"name":"b","versions":{}}`, "name"},
		{"name a number", `{"name":1,"versions":{}}`, "name"},
		{"versions an array", `{"versions":[]}`, "versions"},
		{"versions a string", `{"versions":"1"}`, "versions"},
		{"times an array", `{"versions":{},"time":[]}`, "time"},
		{"time a number", `{"versions":{},"time":{"1":5}}`, "time.1"},
		{"tag an object", `{"versions":{},"dist-tags":{"latest":{}}}`, "dist-tags.latest"},
		{"cut in a key", `{"versions":{"1`, "versions"},
		{"cut in a version", `{"versions":{"1":{"dist":`, "versions.1"},
		{"cut at the end", `{"versions":{}`, ""},
		{"broken", `{"versions":{"1":{]}}`, "versions.1"},
		{"more", `{"versions":{}}{}`, ""},
		{"long value", `{"readme":"` + strings.Repeat("x", testValue) + `","versions":{}}`, "readme"},
		{"long version", `{"versions":{"1":{"x":"` + strings.Repeat("x", testValue) + `"}}}`, "versions.1"},
		{"long key", `{"versions":{"` + strings.Repeat("x", testValue) + `":{}}}`, "versions"},
		{"many versions", `{"versions":{` + strings.Repeat(`"1":0,`, testMembers) + `"1":0}}`, "versions"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDecoder("a", strings.NewReader(test.in))
			d.in.value, d.members = testValue, testMembers
			_, err := d.readPackument()
			var malformed *MalformedError
			switch {
			case test.field == "-" && err != nil:
				t.Error(err)
			case test.field != "-" && !errors.As(err, &malformed):
				t.Errorf("got %v, want an error at %q", err, test.field)
			case test.field != "-" && malformed.Field != test.field:
				t.Errorf("error at %q, want %q: %v", malformed.Field, test.field, err)
			}
		})
	}
}

func TestDecodeDetails(t *testing.T) {
	p, err := decodePackument("a", iotest.OneByteReader(strings.NewReader(`{"name":"a","time":{
		"created":"2019-01-02T03:04:05Z","1":"2020-01-02T03:04:05.678+01:00","unpublished":{"time":"2021-01-02T03:04:05Z"}},
		"versions":{
			"1":{"deprecated":true,"dist":{"tarball":"u","unpackedSize":1e300,"fileCount":-1}},
			"2":{"deprecated":false,"dist":{"tarball":"u"}},
			"3":{"dist":{"tarball":7}},
			"4":{"dist":[]},
			"5":5,
			"6":null,
			"7":{"version":"8","dist":{"tarball":"u"}},
			"8":{"dist":{"tarball":"u","signatures":"`+strings.Repeat("x", maxKept)+`"}},
			"9":{"deprecated":"`+strings.Repeat("é", maxKept)+`","dist":{"tarball":"u"}}
		}}`)))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2020, 1, 2, 2, 4, 5, 678e6, time.UTC)
	if len(p.Time) != 1 || !p.Time["1"].Equal(at) || !p.Versions["1"].Published.Equal(at) {
		t.Errorf("times %v", p.Time)
	}
	if v := p.Versions["1"]; v.Deprecated != "deprecated" || v.UnpackedSize != 0 {
		t.Errorf("1: %+v", v)
	}
	for version, field := range map[string]string{
		"1": "", "2": "", "3": "versions.3.dist.tarball", "4": "versions.4.dist", "5": "versions.5",
		"6": "versions.6.dist.tarball", "7": "versions.7.version", "8": "versions.8", "9": "",
	} {
		v := p.Versions[version]
		var malformed *MalformedError
		errors.As(v.Err, &malformed)
		if v.Version != version || (v.Err != nil) != (field != "") || malformed != nil && malformed.Field != field {
			t.Errorf("%s: error %v, want one at %q", version, v.Err, field)
		}
		if len(v.Deprecated) > maxKept {
			t.Errorf("%s: %d bytes of deprecation", version, len(v.Deprecated))
		}
	}
}

// TestDecodeReadError makes sure that a broken connection is not taken for a malformed packument.
func TestDecodeReadError(t *testing.T) {
	whole := `{"name":"a","dist-tags":{"latest":"1"},"versions":{"1":{"dist":{"tarball":"u"}}},"time":{"1":"2020-01-02T03:04:05Z"}}`
	broken := errors.New("broken")
	for n := range len(whole) {
		r := io.MultiReader(strings.NewReader(whole[:n]), iotest.ErrReader(broken))
		if _, err := decodePackument("a", r); !errors.Is(err, broken) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

func FuzzPackument(f *testing.F) {
	f.Add(`{"name":"a","dist-tags":{"latest":"1"},"versions":{"1":{"version":"1","deprecated":"no","dist":{"tarball":"https://x/y.tgz","integrity":"sha512-xx","shasum":"00","unpackedSize":1,"fileCount":2,"signatures":[]}}},"time":{"created":"2020-01-02T03:04:05.678Z","1":"2020-01-02T03:04:05.678Z"}}`)
	f.Add(`{"time":{"unpublished":{"time":"2021-01-02T03:04:05Z"}}}`)
	f.Add(`{"versions":{"1":[],"2":{"dist":null}}}`)
	c, err := newConfig(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in string) {
		p, err := decodePackument("a", strings.NewReader(in))
		if err != nil {
			var malformed *MalformedError
			if !errors.As(err, &malformed) {
				t.Errorf("%v is not a *MalformedError", err)
			}
			return
		}
		for key, v := range p.Versions {
			if v.Err == nil && (v.Version != key || v.Tarball == "" || v.Package != "a") {
				t.Errorf("%q passes as %+v", key, v)
			}
			if u, err := c.tarballURL("a", v.Tarball); err == nil && u.Host == "" {
				t.Errorf("%q becomes %s", v.Tarball, u)
			}
			parseHashes(v)
		}
	})
}

func BenchmarkDecodePackument(b *testing.B) {
	var in strings.Builder
	in.WriteString(`{"name":"a","versions":{`)
	manifest := `"1.0.N":{"name":"a","version":"1.0.N","description":"` + strings.Repeat("some text ", 20) +
		`","dependencies":{` + strings.Repeat(`"dependency":"^1.2.3",`, 50) + `"x":"1"},"dist":{"tarball":"https://x.example/a/-/a-1.0.N.tgz",` +
		`"integrity":"sha512-` + strings.Repeat("A", 88) + `","shasum":"` + strings.Repeat("0", 40) + `","fileCount":12,"unpackedSize":34567}},`
	for i := range 1000 {
		in.WriteString(strings.ReplaceAll(manifest, "N", strconv.Itoa(i)))
	}
	in.WriteString(`"2.0.0":{"dist":{"tarball":"x"}}},"readme":"` + strings.Repeat("read me ", 5000) + `"}`)
	b.SetBytes(int64(in.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodePackument("a", strings.NewReader(in.String())); err != nil {
			b.Fatal(err)
		}
	}
}
