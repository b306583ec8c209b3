//go:build !linux

package worker

func limitMemory(uint64) {}
