//go:build cgo

package kvstore

const inGoHeap = false
