//go:build race

package replication_test

const raceDetector = true
