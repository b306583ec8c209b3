//go:build !unix

package worker

func lowerPriority() {}
