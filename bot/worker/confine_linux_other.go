//go:build linux && !amd64 && !arm64

package worker

const architecture = 0 // of a filter that has not been tried there
