//go:build !linux

package main

import (
	"errors"
	"io"
)

var errLinux = errors.New("needs Linux")

func pin(int) error                      { return errLinux }
func raiseOpenFiles()                    {}
func openFiles() int                     { return 1024 }
func runLean(io.Reader, io.Writer) error { return errLinux }
