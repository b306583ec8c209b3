//go:build !linux

package worker

func confinedMain() { Main() }
