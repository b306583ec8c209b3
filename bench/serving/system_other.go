//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

var errLinux = errors.New("needs Linux")

func pin(int) error                      { return errLinux }
func raiseOpenFiles()                    {}
func openFiles() int                     { return 1024 }
func runLean(io.Reader, io.Writer) error { return errLinux }

const bareArgument = "bare-server"

func runBare(io.Reader) error { return errLinux }

func startBare(context.Context, *server, []request) (*server, error) { return nil, errLinux }
