//go:build !unix

package worker

func lowerPriority() {}

func limitMemory(uint64) {}
