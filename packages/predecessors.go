package packages

import "slices"

// Predecessors returns the versions from which most users of a version come: of the releases among others that are before it,
// the last one of the same minor version, the last one of another minor version of the same major version, and the last
// one of another major version, by [CompareVersions], in this order, without those that do not exist. Prereleases are no predecessors and have
// none; nor are and have versions in which no numbers are found.
func Predecessors(version string, others []string) []string {
	const sameMinor, sameMajor, earlier, kinds = 0, 1, 2, 3
	own, _, ok := coerce(version)
	if !ok || IsPrerelease(version) {
		return nil
	}
	var last [kinds]string
	for _, other := range others {
		numbers, _, ok := coerce(other)
		if !ok || IsPrerelease(other) || CompareVersions(other, version) >= 0 {
			continue
		}
		kind := sameMinor
		switch {
		case compareNumbers(numbers[0], own[0]) != 0:
			kind = earlier
		case compareNumbers(numbers[1], own[1]) != 0:
			kind = sameMajor
		}
		if last[kind] == "" || CompareVersions(other, last[kind]) > 0 {
			last[kind] = other
		}
	}
	return slices.DeleteFunc(last[:], func(v string) bool { return v == "" })
}

// maxNear bounds the versions after one among which Successors looks.
const maxNear = 32

// Successors returns the versions among others of which a version is one of the [Predecessors], the nearest first; nil for none,
// and for a prerelease. It looks only at the nearest 32 stable versions after it.
func Successors(version string, others []string) []string {
	if _, _, ok := coerce(version); !ok || IsPrerelease(version) {
		return nil
	}
	var near []string // sorted
	for _, other := range others {
		if _, _, ok := coerce(other); !ok || IsPrerelease(other) || CompareVersions(other, version) <= 0 {
			continue
		}
		if len(near) == maxNear && CompareVersions(other, near[maxNear-1]) >= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(near, other, CompareVersions)
		near = slices.Insert(near, i, other)[:min(len(near)+1, maxNear)]
	}
	var found []string
	for i, after := range near {
		if slices.Contains(Predecessors(after, append([]string{version}, near[:i]...)), version) {
			found = append(found, after)
		}
	}
	return found
}
