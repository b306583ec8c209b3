//go:build !unix

package bucket

import "errors"

// OpenFolder returns an error: there is no lock here that ends with its process.
func OpenFolder(string) (Bucket, error) {
	return nil, errors.New("a folder cannot be a bucket on this system; use an object store")
}
