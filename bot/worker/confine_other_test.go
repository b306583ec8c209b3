//go:build !linux

package worker

func confinedMain() { RunChild() }
