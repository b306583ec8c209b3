package worker

import "fmt"

// A kernel is what the system has to confine a child with. Each function returns nil where it has that, or why not.
type kernel struct {
	landlock func() error // no files, no TCP
	filter   func() error // no system calls but those that computing takes
	memory   func() error // a limit that the parent sets for each job
}

// Unprotected returns what children on this system go without, and why; nothing where they have all of it.
func Unprotected() []string { return system.lacks() }

func (k kernel) lacks() []string {
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
