//go:build !race

package worker

// mappedPerByte is how many bytes are mapped for one that a child uses.
const mappedPerByte = 1

const raceEnabled = false
