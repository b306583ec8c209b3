package replication

// SumOf is the hash of a member's bytes that its header has.
var SumOf = memberSum

// EncodeBundleHeader is the first member of a bundle since a log size, whose checkpoint, key and keys are heads.
func EncodeBundleHeader(since, size int64, packages []string, heads ...[]byte) ([]byte, error) {
	return bundleHeader{Format: bundleFormat, Since: since, Size: size, Packages: packages}.encode(heads...)
}

// ReportAge is reportAge.
func (f *Follower) ReportAge(reported bool) bool { return f.reportAge(reported) }
