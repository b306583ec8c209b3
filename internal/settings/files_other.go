//go:build !unix

package settings

// maxFiles is not known: there is no such limit.
func maxFiles() (uint64, bool) { return 0, false }
