//go:build !unix

package bucket

import "errors"

var errNoFolder = errors.New("a folder cannot be a bucket on this system; use an object store")

// OpenFolder returns an error: this system has no file lock that ends with its process.
func OpenFolder(string) (Bucket, error) { return nil, errNoFolder }

// FolderAt returns an error, as OpenFolder does.
func FolderAt(string) (Bucket, error) { return nil, errNoFolder }
