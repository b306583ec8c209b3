//go:build !cgo

package kvstore

const inGoHeap = true
