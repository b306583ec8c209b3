package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"mime"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Labels of encodings (https://encoding.spec.whatwg.org/#names-and-labels) in which ASCII's bytes have other meanings.
var (
	utf8Labels   = []string{"unicode-1-1-utf-8", "unicode11utf8", "unicode20utf8", "utf-8", "utf8", "x-unicode20utf8"}
	utf16Labels  = []string{"csunicode", "iso-10646-ucs-2", "ucs-2", "unicode", "unicodefeff", "utf-16", "utf-16le"}
	utf16BLabels = []string{"unicodefffe", "utf-16be"}
	unsafeLabels = []string{"csiso2022jp", "iso-2022-jp", "csiso2022kr", "hz-gb-2312", "iso-2022-cn", "iso-2022-cn-ext", "iso-2022-kr", "replacement"}
)

// decodePage decodes a page as browsers do, by its byte order mark, else the charset of the Content-Type, which is "" for
// none, and else its meta elements. If it is not known how a browser decodes the page, or the encoding is in unsafeLabels,
// the error says why.
//
// legacy is set if the encoding is none of Unicode's. Larder does not have the tables of these encodings. All of them but
// those that decodePage refuses have ASCII's characters at ASCII's bytes, except within a character of several bytes, whose
// bytes are never the quotes, brackets and spaces that tags are made of. So the tags are right, and characters that are
// not ASCII are unknown: each is U+FFFD.
func decodePage(data []byte, contentType string) (text string, legacy bool, err error) {
	header := ""
	if _, parameters, err := mime.ParseMediaType(contentType); err == nil {
		header = normalizeLabel(parameters["charset"])
	} else if contentType != "" && strings.Contains(strings.ToLower(contentType), "charset") {
		return "", false, fmt.Errorf("its Content-Type %.100q cannot be read, so browsers may read it in different ways", contentType)
	}
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return strings.ToValidUTF8(string(data[3:]), "\ufffd"), false, nil
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		return decodeUTF16(data[2:], binary.LittleEndian), false, nil
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		return decodeUTF16(data[2:], binary.BigEndian), false, nil
	case slices.Contains(utf16Labels, header):
		return decodeUTF16(data, binary.LittleEndian), false, nil
	case slices.Contains(utf16BLabels, header):
		return decodeUTF16(data, binary.BigEndian), false, nil
	case slices.Contains(utf8Labels, header):
		return strings.ToValidUTF8(string(data), "\ufffd"), false, nil
	case slices.Contains(unsafeLabels, header):
		return "", false, fmt.Errorf("its encoding is %s, which is not supported", header)
	case bytes.IndexByte(data, 0) >= 0:
		return "", false, fmt.Errorf("it contains null bytes and nothing says that it is UTF-16, so browsers may read it in different ways")
	}
	// Browsers look at the first kilobyte, or at the head, and a label that they do not know does not count. So any meta element
	// might be the one that decides.
	labels := append(metaLabels(data), writtenLabels(data)...)
	isUTF8 := header == ""
	for _, label := range labels {
		if slices.Contains(unsafeLabels, label) {
			return "", false, fmt.Errorf("a meta element says that its encoding is %s, which is not supported", label)
		}
		// UTF-16 in a meta element means UTF-8, because it could not be read otherwise.
		isUTF8 = isUTF8 && (slices.Contains(utf8Labels, label) || slices.Contains(utf16Labels, label) || slices.Contains(utf16BLabels, label))
	}
	declared := header != "" || len(labels) > 0
	switch {
	case isUTF8 && declared:
		return strings.ToValidUTF8(string(data), "\ufffd"), false, nil
	case !declared && bytes.IndexByte(data, 0x1b) >= 0:
		return "", false, fmt.Errorf("it contains escape characters and declares no encoding, so browsers may take it for ISO-2022-JP")
	}
	return replaceNonASCII(data), true, nil
}

// normalizeLabel returns the label of a character encoding in lower case, without spaces around it.
func normalizeLabel(label string) string { return strings.ToLower(strings.Trim(label, "\t\n\f\r ")) }

// replaceNonASCII returns data as text in which each byte that is not ASCII is U+FFFD.
func replaceNonASCII(data []byte) string {
	var b strings.Builder
	b.Grow(len(data))
	for _, c := range data {
		if c < utf8.RuneSelf {
			b.WriteByte(c)
		} else {
			b.WriteRune(utf8.RuneError)
		}
	}
	return b.String()
}

// decodeUTF16 decodes the text of a page in UTF-16 with this byte order, without a byte order mark. It ignores an odd byte
// at the end, and makes U+FFFD of invalid surrogates.
func decodeUTF16(data []byte, order binary.ByteOrder) string {
	units := make([]uint16, 0, len(data)/2)
	for ; len(data) >= 2; data = data[2:] {
		units = append(units, order.Uint16(data))
	}
	return string(utf16.Decode(units))
}

// metaLabels returns the labels of character encodings that the page's meta elements declare, normalized, in order and as
// often as they are there, in their charset or content attributes. It also returns unknown and empty ones.
func metaLabels(data []byte) (labels []string) {
	_ = eachTag(data, func(t tag) error { // the parser reports a page that cannot be read
		for _, a := range t.Attr {
			switch {
			case t.Data != "meta":
			case a.Key == "charset":
				labels = append(labels, normalizeLabel(a.Val))
			case a.Key == "content":
				if label := charsetOf(a.Val); label != "" {
					labels = append(labels, label)
				}
			}
		}
		return nil
	})
	return labels
}

// writtenLabels returns those of unsafeLabels, encodings in which tags cannot be found by ASCII's bytes, that are written
// anywhere in the page after "charset", such as in a script, in order and once for each place. Browsers that look for a
// declaration before they parse the page may take that for one. UTF-16 is none of them: in a page it means UTF-8.
func writtenLabels(data []byte) (labels []string) {
	for rest := strings.ToLower(string(data)); ; {
		at := strings.Index(rest, "charset")
		if at < 0 {
			return labels
		}
		rest = rest[at:]
		if label := charsetOf(rest[:min(len(rest), 200)]); slices.Contains(unsafeLabels, label) {
			labels = append(labels, label)
		}
		rest = rest[len("charset"):]
	}
}

// charsetOf returns the label after the first "charset=" in a text such as "text/html; charset=utf-8", in lower case and
// without quotes, or "". It need not be the label of a known encoding.
func charsetOf(content string) string {
	lower := strings.ToLower(content)
	for {
		_, rest, ok := strings.Cut(lower, "charset")
		if !ok {
			return ""
		}
		lower = rest
		rest = strings.TrimLeft(rest, "\t\n\f\r ")
		if !strings.HasPrefix(rest, "=") {
			continue
		}
		rest = strings.TrimLeft(rest[1:], "\t\n\f\r ")
		if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
			label, _, _ := strings.Cut(rest[1:], rest[:1])
			return normalizeLabel(label)
		}
		if end := strings.IndexAny(rest, ";\t\n\f\r "); end >= 0 {
			rest = rest[:end]
		}
		return rest
	}
}
