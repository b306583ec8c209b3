package packages

// The bounds of a [Start].
const (
	mostPrereleases = 2
	mostLooks       = 200
)

// A Start chooses the releases that a new package starts with, from the newest on. Those that cannot be published do
// not count, nor do more than a few prereleases; and it looks at a bounded number.
type Start struct{ left, prereleases, looks int }

// NewStart returns a Start that chooses the given number of releases.
func NewStart(newest int) *Start {
	return &Start{left: newest, prereleases: mostPrereleases, looks: mostLooks}
}

// Wants reports whether the version, the next older one, should be tried.
func (s *Start) Wants(version string) bool {
	return s.left > 0 && s.looks > 0 && (s.prereleases > 0 || !IsPrerelease(version))
}

// Take counts a version that was chosen.
func (s *Start) Take(version string) {
	s.left--
	s.looks--
	if IsPrerelease(version) {
		s.prereleases--
	}
}

// Pass counts a version that was tried and cannot be published.
func (s *Start) Pass() { s.looks-- }

// Full reports whether all releases are chosen.
func (s *Start) Full() bool { return s.left <= 0 }

// Examined returns how many versions were tried.
func (s *Start) Examined() int { return mostLooks - s.looks }
