// Package queue decides who comes into a waiting room and who waits, across data
// centres. It is arithmetic only: three state machines that are told the time and
// exchange messages as values,
//
//	Worker → DataCentre → Global → DataCentre → Worker
//
// so that one process, durable objects, a cluster or a simulation may carry them. The
// same calls with the same seed give the same decisions. It must not know HTTP, cookies,
// stores, goroutines or clocks.
//
// # What it guarantees
//
// With the allocator [Counter], and as long as no two clocks differ by more than
// [Settings].Skew, however late, lost, repeated or reordered messages are, whichever data
// centres die, are cut off or come back without their memory:
//
//   - At no moment are there more sessions that pass anywhere than TotalActiveUsers.
//   - In no minute of the global object's clock are more visitors admitted than
//     NewUsersPerMinute.
//
// What is not covered: [Passthrough] and Suspended, which enforce nothing (afterwards
// nobody is admitted until every data centre has reported again); and a limit that is
// lowered, which holds for what is granted from then on. [Even] and [Adaptive] keep no
// limit; they are the published designs that came before, for comparison.
//
// # How
//
// The global object hands out grants. A grant is a number for one data centre (more
// exactly, one life of it, its incarnation) and one minute; the number only grows, so a
// data centre keeps the highest that it has seen and a repeated or late one changes
// nothing. Each admission is charged to the grant of its minute. Reports carry what has
// been charged for each minute, cumulatively, and how many sessions there are.
//
// Minutes. An admission at c of the data centre's clock is charged to every minute that
// [c-Skew, c+Skew] touches: to two near the turn of a minute. By the global object's
// clock it happens in one of them. So at most as many are admitted in a minute as were
// granted for it, by all data centres together; and [Global] grants no more for a minute
// than NewUsersPerMinute in total, not even for those who have died since.
//
// Sessions. Let r be any report of a data centre, sent at s. Write active(s) for the
// sessions it counts, charged(m) for the charges to minute m that it names, granted(m)
// for what has been granted to it for m up to now. Then
//
//	bound = active(s) + Σ granted(m) - charged(m)
//	        over the minutes m that had not ended at s, see below
//
// is not exceeded by the sessions that this data centre answers for, now or at any time
// before the next grant: they grow only by admissions, each of which raises charged(m)
// for a minute m that had not ended, and never above granted(m). This holds for every
// report, an old one too; the newest is merely the tightest. A minute has ended at s if s
// is Skew after it: the data centre's clock does not go back, so it charges nothing to
// it any more, and what was not used is known to be unused. Until a report says so, an
// expired grant counts as used. [Global] grants only while Σ bound over all data centres
// stays at most TotalActiveUsers. Between grants no bound grows except by sessions that
// have moved, which are next. So the limit holds at all times.
//
// Who answers for a session. A ticket names the end of its session, E. The data centre
// that wrote E counts the session until its clock shows E+Skew; at that time no clock
// shows less than E, so the ticket passes nowhere. A renewal is written only by a data
// centre that counts the session. A ticket from elsewhere is counted from its first
// request on (it is adopted) but renewed only when the global object has acknowledged a
// report that counts it; up to then E, and whoever wrote it, still hold. So the session is
// within some bound at every moment: until the acknowledged report was received within
// that of the old data centre, whose report without the session can only have been sent
// after E+Skew, and from then on within that of the new one. In between it is counted
// twice, which costs a slot and is safe. A life that has lost its memory is one more data
// centre: it adopts the sessions of the one before.
//
// Silence. A data centre renews and admits only under a lease, until [State].LeaseUntil
// by its own clock: Lease after the last answer was made. What it wrote last ends by
//
//	horizon = LeaseUntil + one minute + SessionDuration + 2·Skew
//
// after which a data centre that was not heard of counts nothing. Its next life under
// the same name ends all its renewals, so then its horizon is a minute, SessionDuration
// and 2·Skew after the start of that life.
//
// Lost state. [DataCentre] may lose everything. [Global] must not, as what it granted is
// nowhere else; [RecoverGlobal] is for when it has. It admits nobody until its grants of
// before have expired and every data centre has reported since, with nothing left that
// an earlier life of one has promised; or until the horizon. The usual rule, one session
// duration, would not be safe here, for a data centre that cannot be reached may renew
// sessions during its lease: it takes the lease as well.
//
// # What it costs
//
// Slots that nobody can use while people wait are those of
//
//   - sessions that have ended since the last report: its interval and the way, twice;
//     or, for a data centre that cannot be reached, its bound, until its horizon: at most
//     Lease + SessionDuration + a minute + 2·Skew after the last answer to it;
//   - grants that are not released yet, or wait for a check-in, or for nobody, as their
//     visitor has left: these come back with the first report after the minute. A release
//     takes at most one refresh interval, and so does the next check-in.
//
// Where all data centres can be reached and those who wait are more than the slots, a
// slot is therefore in use again within
//
//	report + 2·delay + 2·Skew + 2·refresh,  and at most one minute more
//
// and what is unused is no more than the sessions that ended in that time. Package
// simulate measures it.
//
// # Tickets
//
// A ticket that waits counts once in its interval, a check-in that is too early changes
// nothing. A first request gets a slot only beyond those that everybody who waits at its
// data centre could take. The waiting ticket of somebody who has come in is worth the
// session, and after that nothing. So hammering, dropping or repeating tickets gains
// nothing at one data centre. A ticket that is copied can wait once at each data centre
// that its holder can reach, and comes in with its place through each of them, within the
// limits; whoever has a copy of an accepted ticket shares its one session until it is
// revoked.
package queue
