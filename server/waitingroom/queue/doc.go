// Package queue decides who comes into a waiting room and who waits, across data
// centres. It is arithmetic only: three state machines that are told the time and
// exchange messages as values,
//
//	Worker → DataCentre → Global → DataCentre → Worker
//
// so that one process, durable objects, a cluster or a simulation may carry them. The
// same calls with the same seed give the same decisions.
//
// It must not know HTTP, cookies, stores, goroutines or clocks.
package queue
