package packages

// The bounds of a [Start].
const (
	mostPrereleases = 2
	mostLooks       = 200
)

// A Start chooses the releases that a new package starts with, from the newest on. Those that cannot be published do
// not count, nor do more than a few prereleases; and it looks at a bounded number.
type Start struct{ left, prereleases, looks int }

// NewStart returns a Start that chooses up to newest of the releases that the caller offers to it, from the newest on; none if newest is 0
// or negative.
func NewStart(newest int) *Start {
	return &Start{left: newest, prereleases: mostPrereleases, looks: mostLooks}
}

// Wants reports whether the version, the next older one, should be tried. It returns false if enough releases are chosen, if
// 200 were tried, or for a prerelease after two chosen ones.
func (s *Start) Wants(version string) bool {
	return s.left > 0 && s.looks > 0 && (s.prereleases > 0 || !IsPrerelease(version))
}

// Take counts a version that was chosen and, if it is a prerelease, one of the two prereleases that may be.
func (s *Start) Take(version string) {
	s.left--
	s.looks--
	if IsPrerelease(version) {
		s.prereleases--
	}
}

// Pass counts a version that was tried and cannot be published, so that it was not chosen.
func (s *Start) Pass() { s.looks-- }

// Full reports whether as many releases are chosen as the argument of [NewStart] says; true from the start if that is 0 or less.
func (s *Start) Full() bool { return s.left <= 0 }

// Examined returns how many versions were tried, whether they were chosen or not.
func (s *Start) Examined() int { return mostLooks - s.looks }
