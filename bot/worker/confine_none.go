//go:build !unix

package worker

func confineAnywhere() error { return nil }

func lowerPriority() error { return nil }

func closeInherited() {}
