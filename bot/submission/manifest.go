package submission

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/larder-cdn/larder/packages"
)

// manifest is what a draft takes from a package.json. Authors write most fields in several ways.
type manifest struct {
	Description text   `json:"description"`
	License     text   `json:"license"`
	Homepage    text   `json:"homepage"`
	Keywords    text   `json:"keywords"`
	Repository  text   `json:"repository"`
	Author      text   `json:"author"`
	Authors     []text `json:"contributors"`
	Unpkg       text   `json:"unpkg"`
	JSDelivr    text   `json:"jsdelivr"`
	Browser     text   `json:"browser"`
	Main        text   `json:"main"`
	Module      text   `json:"module"`
	Style       text   `json:"style"`
}

// text is a value that ought to be a text: it may also be an object that has one inside, or a list.
type text struct{ raw json.RawMessage }

func (t *text) UnmarshalJSON(data []byte) error {
	t.raw = append([]byte(nil), data...)
	return nil
}

// string returns the text, or that of an object's url or type, or "".
func (t text) string() string {
	var s string
	if json.Unmarshal(t.raw, &s) == nil {
		return s
	}
	var object struct{ URL, Type string }
	if json.Unmarshal(t.raw, &object) == nil {
		if object.URL != "" {
			return object.URL
		}
		return object.Type // of a license
	}
	return ""
}

// strings returns the texts of a list, or those between the commas of a text.
func (t text) strings() []text {
	var list []text
	if json.Unmarshal(t.raw, &list) == nil {
		return list
	}
	for part := range strings.SplitSeq(t.string(), ",") {
		if raw, err := json.Marshal(part); err == nil {
			list = append(list, text{raw})
		}
	}
	return list
}

// person is npm's "Name <email> (url)".
var person = regexp.MustCompile(`^\s*([^<(]*?)\s*(?:<([^>(]*)>)?\s*(?:\(([^)]*)\))?\s*$`)

// author reads a person, whose address for mail stays out of a file that is going to be published
// without being asked.
func (t text) author() (packages.Author, bool) {
	var object struct{ Name, URL string }
	if json.Unmarshal(t.raw, &object) != nil {
		m := person.FindStringSubmatch(t.string())
		if m == nil {
			return packages.Author{}, false
		}
		object.Name, object.URL = m[1], m[3]
	}
	a := packages.Author{Name: oneLine(object.Name), URL: webAddress(object.URL)}
	return a, a.Name != ""
}
