package worker

import "fmt"

// protections are the ways in which the system can confine a child. Each function returns nil if the system has it, or why not.
type protections struct {
	landlock func() error // no files, no TCP
	filter   func() error // no system calls but those that computing needs
	memory   func() error // a limit that the parent sets for each job
}

// Unprotected returns, for each protection that worker processes lack on this system (Landlock, a system-call filter, a limit of
// memory), its name and why; nil if they have all three. It tests the system, not the processes.
func Unprotected() []string { return system.missing() }

// missing returns a text for each of the protections of child processes (Landlock, a system-call filter, a limit of memory) that
// the system lacks: what it would do, and why the system lacks it. It probes the system at each call.
func (k protections) missing() []string {
	var lacks []string
	for _, protection := range []struct {
		name  string
		probe func() error
	}{
		{"Landlock, which keeps files and TCP from them", k.landlock},
		{"a system-call filter, which keeps files, sockets and other processes from them", k.filter},
		{"a limit on their memory", k.memory},
	} {
		if err := protection.probe(); err != nil {
			lacks = append(lacks, fmt.Sprintf("%s: %v", protection.name, err))
		}
	}
	return lacks
}
