package negotiate

import "net/http"

// Fields are the fields of a request that choose its answer, a string for each
// line, nil where there is none.
type Fields struct {
	Accept            []string
	AcceptEncoding    []string
	IfMatch           []string
	IfNoneMatch       []string
	IfModifiedSince   []string
	IfUnmodifiedSince []string
}

// FieldsOf returns the fields of a request that net/http has read.
func FieldsOf(h http.Header) Fields {
	return Fields{
		Accept:            h["Accept"],
		AcceptEncoding:    h["Accept-Encoding"],
		IfMatch:           h["If-Match"],
		IfNoneMatch:       h["If-None-Match"],
		IfModifiedSince:   h["If-Modified-Since"],
		IfUnmodifiedSince: h["If-Unmodified-Since"],
	}
}
