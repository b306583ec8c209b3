//go:build race

package modules

const raceEnabled = true
