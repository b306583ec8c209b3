package packages

// Predecessors returns the versions from which most users of a version come: of the releases among others that are before it, the last one of the
// same minor version, the last one of an earlier minor version of the same major version, and the last one of an earlier major version. Prereleases
// are no predecessors and have none.
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
	var found []string
	for _, v := range last {
		if v != "" {
			found = append(found, v)
		}
	}
	return found
}
