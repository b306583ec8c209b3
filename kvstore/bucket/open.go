package bucket

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// CheckURL returns an error unless at is the URL of a bucket: s3://NAME[/PREFIX], or file:///DIR.
func CheckURL(at string) error {
	_, err := parseURL(at)
	return err
}

// parseURL parses the URL of a bucket, s3://NAME[/PREFIX] or file:///DIR, and returns an error for any other.
func parseURL(at string) (*url.URL, error) {
	u, err := url.Parse(at)
	if err == nil && u.RawQuery == "" && u.Fragment == "" && u.User == nil && u.Opaque == "" {
		switch {
		case u.Scheme == "s3" && u.Host != "" && u.Port() == "":
			return u, nil
		case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path) && filepath.Clean(u.Path) != "/":
			return u, nil
		}
	}
	return nil, errors.New("must be s3://NAME[/PREFIX], or file:///DIR for a folder")
}

// Open returns the bucket at a URL that [CheckURL] accepts, s3://NAME[/PREFIX] or file:///DIR; a folder is created if necessary, and an object store
// is not queried. endpoint is the http or https URL of the object store, which an s3 URL needs, and region that of the bucket, "" for us-east-1; both
// are ignored for a folder.
func Open(at, endpoint, region string) (Bucket, error) {
	u, err := parseURL(at)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q %w", at, err)
	case u.Scheme == "file":
		return OpenFolder(u.Path)
	case endpoint == "":
		return nil, fmt.Errorf("%s needs --bucket-endpoint too: the URL of the object store", at)
	}
	return OpenS3(S3Options{Endpoint: endpoint, Name: u.Host, Prefix: strings.Trim(u.Path, "/"), Region: region})
}
