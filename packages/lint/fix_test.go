package lint

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages"
)

func TestFormat(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"good":    {slider, slider},
		"compact": {func() string { var b bytes.Buffer; json.Compact(&b, []byte(slider)); return b.String() }(), slider},
		"order": {`{"autoupdate":{"fileMap":[{"files":["*"],"basePath":""}],"target":"t","source":"npm"},"authors":[{"url":"u","name":"n"}],"name":"n"}`,
			"{\n  \"name\": \"n\",\n  \"authors\": [\n    {\n      \"name\": \"n\",\n      \"url\": \"u\"\n    }\n  ],\n  \"autoupdate\": {\n    \"source\": \"npm\",\n    \"target\": \"t\",\n" +
				"    \"fileMap\": [\n      {\n        \"basePath\": \"\",\n        \"files\": [\n          \"*\"\n        ]\n      }\n    ]\n  }\n}\n"},
		"unknown last, as they were": {`{"zz":1,"aa":{"url":1,"name":2},"name":"n"}`, "{\n  \"name\": \"n\",\n  \"zz\": 1,\n  \"aa\": {\n    \"url\": 1,\n    \"name\": 2\n  }\n}\n"},
		"texts as they are":          {`{"name":"\u00e9\/é","n":1.50e1,"e":[],"o":{}}`, "{\n  \"name\": \"\\u00e9\\/é\",\n  \"n\": 1.50e1,\n  \"e\": [],\n  \"o\": {}\n}\n"},
		"twice":                      {`{"a":1,"a":2}`, ""},
		"twice by an escape":         {`{"a":1,"\u0061":2}`, ""},
		"no object":                  {`[1]`, ""},
		"no JSON":                    {`{`, ""},
		"more":                       {`{} {}`, ""},
		"no text":                    {"{\"a\":\"\xff\"}", ""},
		"byte order mark":            {"\xef\xbb\xbf{}", ""},
		"deep":                       {`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", ""},
	}
	for name, tt := range tests {
		got, err := packages.Format([]byte(tt.in), true)
		if string(got) != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: got %v\n%s\nwant\n%s", name, err, got, tt.want)
		}
	}
}

// checkSame holds that two package JSONs say the same.
func checkSame(t *testing.T, before, after []byte) {
	t.Helper()
	a, errA := packages.Parse("", before)
	b, errB := packages.Parse("", after)
	if (errA == nil) != (errB == nil) {
		t.Fatalf("%v, but formatted %v", errA, errB)
	}
	if errA != nil {
		return
	}
	a.JSON, b.JSON, a.Warnings, b.Warnings = nil, nil, nil, nil
	// What is compiled holds pointers; it follows from the rest.
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	if errX != nil || errY != nil || !bytes.Equal(x, y) {
		t.Fatalf("before\n%s\nafter\n%s", x, y)
	}
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte(slider))
	f.Add([]byte(`{"b":[1,{"name":"\ud83d\ude00"}],"name":"x","a":1e400}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := packages.Format(data, true)
		if err != nil {
			return
		}
		twice, err := packages.Format(once, true)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("formatting again: %v\n%s\nbecomes\n%s", err, once, twice)
		}
		decode := func(data []byte) (v any) {
			d := json.NewDecoder(bytes.NewReader(data))
			d.UseNumber()
			if err := d.Decode(&v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		if !reflect.DeepEqual(decode(data), decode(once)) {
			t.Fatalf("%s\nbecomes\n%s", data, once)
		}
		checkSame(t, data, once)
	})
}

// FuzzFix holds that fixing twice changes nothing more, and that what cannot be used is not touched.
func FuzzFix(f *testing.F) {
	f.Add([]byte(slider), "packages/x/slider.json")
	f.Add([]byte(strings.ReplaceAll(slider, "\n", "")), "slider.json")
	f.Fuzz(func(t *testing.T, data []byte, place string) {
		if !filepath.IsLocal(place) || len(place) > 100 || strings.ContainsRune(place, 0) || filepath.Ext(place) != ".json" {
			return
		}
		file := filepath.Join(t.TempDir(), filepath.FromSlash(place))
		if os.MkdirAll(filepath.Dir(file), 0o755) != nil || os.WriteFile(file, data, 0o644) != nil {
			return
		}
		first, err := Fix(file)
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(first.To)
		if err != nil {
			t.Fatal(err)
		}
		if first.To != file {
			if _, err := os.Lstat(file); err == nil {
				t.Error("moved, but still there")
			}
		}
		if _, err := packages.Parse(filepath.ToSlash(file), data); err != nil && !bytes.Equal(data, after) {
			t.Fatalf("touched what cannot be used:\n%s\n%s", data, after)
		}
		checkSame(t, data, after)
		second, err := Fix(first.To)
		if err != nil || len(second.Done) > 0 {
			t.Fatalf("fixing again: %v, %v", second, err)
		}
	})
}

func TestFix(t *testing.T) {
	compact := strings.NewReplacer("\n", "", "  ", "").Replace(slider)
	tests := map[string]struct {
		files      map[string]string
		fix, to    string
		done, left string
		want       string // the content afterwards
	}{
		"good":        {files: map[string]string{"packages/s/slider.json": slider}, fix: "packages/s/slider.json", want: slider},
		"layout":      {files: map[string]string{"slider.json": compact}, fix: "slider.json", done: "laid out", want: slider},
		"place":       {files: map[string]string{"packages/x/slider.json": slider}, fix: "packages/x/slider.json", to: "packages/s/slider.json", done: "moved", want: slider},
		"both":        {files: map[string]string{"packages/slider.json": compact}, fix: "packages/slider.json", to: "packages/s/slider.json", done: "laid out moved", want: slider},
		"place taken": {files: map[string]string{"packages/x/slider.json": compact, "packages/s/slider.json": "mine"}, fix: "packages/x/slider.json", left: "where another file is", want: compact},
		"other name":  {files: map[string]string{"packages/s/other.json": compact}, fix: "packages/s/other.json", left: "only its author", want: compact},
		"no JSON":     {files: map[string]string{"slider.json": "{"}, fix: "slider.json", left: "only its author", want: "{"},
		"a slip":      {files: map[string]string{"slider.json": strings.Replace(compact, "basePath", "basepath", 1)}, fix: "slider.json", left: "only its author", want: strings.Replace(compact, "basePath", "basepath", 1)},
		"order":       {files: map[string]string{"slider.json": strings.Replace(strings.Replace(slider, "  \"license\": \"MIT\",\n", "", 1), "{\n", "{\n  \"license\": \"MIT\",\n", 1)}, fix: "slider.json", done: "properties put in order", want: slider},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for file, text := range tt.files {
				if err := Create(filepath.Join(folder, file), []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.to == "" {
				tt.to = tt.fix
			}
			f, err := Fix(filepath.Join(folder, tt.fix))
			if err != nil {
				t.Fatal(err)
			}
			if f.To != filepath.Join(folder, filepath.FromSlash(tt.to)) {
				t.Errorf("to %s", f.To)
			}
			got := strings.Join(f.Done, " ")
			if i := strings.Index(got, " to "); i >= 0 {
				got = got[:i]
			}
			if got != tt.done || !strings.Contains(f.Left, tt.left) || (f.Left == "") != (tt.left == "") {
				t.Errorf("got %+v", f)
			}
			data, err := os.ReadFile(f.To)
			if err != nil || string(data) != tt.want {
				t.Errorf("%v\n%s", err, data)
			}
			entries, err := os.ReadDir(filepath.Dir(f.To))
			if err != nil || len(entries) != 1 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
	t.Run("a link is left alone", func(t *testing.T) {
		folder := t.TempDir()
		target := filepath.Join(folder, "target")
		if err := os.WriteFile(target, []byte(compact), 0o644); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(folder, "slider.json")
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if _, err := Fix(link); err == nil {
			t.Error("no error")
		}
		if data, _ := os.ReadFile(target); string(data) != compact {
			t.Error("the target was changed")
		}
	})
	t.Run("the mode stays", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "slider.json")
		if err := os.WriteFile(file, []byte(compact), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Fix(file); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	})
}

// TestMoveFails tests that a file which cannot be removed is not left in two places.
func TestMoveFails(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "slider.json")
	if err := os.WriteFile(filepath.Join(from, "file"), nil, 0o600); err != nil { // so that the folder cannot be removed
		t.Fatal(err)
	}
	if err := moveFile(from, to, []byte(slider)); err == nil {
		t.Error("a folder with a file in it was moved")
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("the new file is still there")
	}
}
