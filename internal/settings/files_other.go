//go:build !unix

package settings

// maxOpenFiles returns false: this system has no such limit.
func maxOpenFiles() (uint64, bool) { return 0, false }
