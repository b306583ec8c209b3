//go:build !race

package glob

const raceDetector = false
