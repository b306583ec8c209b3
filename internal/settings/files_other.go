//go:build !unix

package settings

// maxOpenFiles returns false: there is no such limit.
func maxOpenFiles() (uint64, bool) { return 0, false }
