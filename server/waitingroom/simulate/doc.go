// Package simulate runs a waiting room in virtual time: visitors who come, wait and
// stay, the machines of package queue, and the network between them with its delays and
// losses, clocks that differ, data centres that die and come back. The same [Options]
// give the same [Result].
//
// The truth is measured from outside: who was let in when, and until when a ticket would
// have passed somewhere. Nothing that the machines count is believed.
package simulate
