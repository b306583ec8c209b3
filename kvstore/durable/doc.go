// Package durable runs objects that have a name, one thread and storage of their
// own, on a kvstore. It is the model of Cloudflare's Durable Objects: code that
// reads, changes and writes needs no lock, and what it tells anybody is on the disk
// before they hear it.
//
//	// A counter that gives each number to one caller only.
//	type counter struct{ durable.NoAlarm }
//
//	func (counter) Handle(ctx context.Context, s *durable.State, _ struct{}) (int, error) {
//		n, _, err := durable.GetJSON[int](ctx, s, "counter")
//		if err != nil {
//			return 0, err
//		}
//		return n, durable.PutJSON(ctx, s, "counter", n+1)
//	}
//
//	runtime := durable.New(store, durable.Options{})
//	counters, err := durable.Open(runtime, durable.Class[struct{}, int]{Name: "counter", New: …})
//	n, err := counters.Object("tickets").Send(ctx, struct{}{})
//
// A [Runtime] is what runs them over one store. A [Class] says how objects of a
// kind behave. A [Namespace] is all objects of a class; an [Object] is one of them,
// by name, whether it was ever used or not. Sending to it delivers an event: the
// runtime has a [Handler] made, if none is in memory, and calls it with a [State],
// which is the storage and every way out.
//
// # What is guaranteed
//
//   - One instance of an object, and one event at a time. An event has the object's
//     turn from its delivery to its return. Its reads and writes do not give the turn
//     away, so no other event comes between them: the input gate. It is given
//     away where the event waits for somebody else: in [State.Call] and
//     what goes through it, in [State.Wait], and in a read with [AllowConcurrency].
//   - What an event lets out, be it the answer, an error or a call, leaves once every
//     write that the object made before is durable: the output gate. If such a write
//     fails, the answer is dropped, the caller gets [ErrReset], and the object starts
//     again from its storage. Only a write with [AllowUnconfirmed] is not waited for.
//   - Writes are one atomic write with those before them, until the event reads what
//     is not in memory, lets a call out, calls [State.Sync] or returns. Later
//     writes are never there without earlier ones.
//   - A read sees all writes of the object that were made before it, durable or not,
//     and none that were made after.
//   - An alarm fires at its time or later, at least once, whatever is killed
//     meanwhile. See [State.SetAlarm].
//   - Memory is bounded by [Limits]. An object that sleeps costs none, nor a goroutine,
//     whether it has an alarm or not.
//
// An event that begins several tasks with [State.Go] is not protected from
// itself: they run at the same time, until one of them comes back from a call, which is
// like an event of its own.
//
// # How it is enforced
//
// A State works in the event that it was given to, while that has the turn; before, in
// a call and afterwards it refuses everything. [State.Client] is an HTTP client whose
// every request passes the output gate, and an Object that is sent to with
// the context of an event does, too. So a Handler should be made of values, and of
// nothing that talks by itself: whatever does belongs into a [State.Call].
//
// An event runs in the goroutine of whoever sends it, and an error that a handler
// returns does not undo its writes; [State.Transaction] is for that. A handler that
// panics loses what it wrote since the last point named above, and the object starts
// again.
//
// The package knows nothing of packages, releases or rooms. The rows are described in
// docs/store.md.
package durable
