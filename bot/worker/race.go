//go:build race

package worker

// mappedPerByte is how many bytes are mapped for one that a child uses; the race detector keeps several.
const mappedPerByte = 8

const raceEnabled = true
