package waitingroom

import "time"

// maxForecast ends a forecast, in minutes: a week.
const maxForecast = 7 * 24 * 60

// A Forecast is what happens if a number of people come to a room within one minute, and no other people after them.
type Forecast struct {
	People   int
	AtOnce   int           // how many of them enter within the first minute
	LastWait time.Duration // how long the last of them waits, in whole minutes, at least
	Endless  bool          // the last of them waits more than a week, or for ever
}

// Forecast computes how long people wait if so many come to the room at once, behind those who wait already, with the limits in
// s. It assumes that every session ends as early as it can, SessionDuration after the admission, so real waits are as long or
// longer. It ignores that the room may admit no new users at the moment.
func (s Status) Forecast(people int) Forecast {
	f := Forecast{People: people}
	session := max(1, s.SessionDuration)
	leaving := make([]int, session) // how many sessions end in each of the next minutes
	for i := range leaving {
		leaving[i] = s.Active*(i+1)/session - s.Active*i/session
	}
	active, waiting := s.Active, s.Queued+people
	for minute := range maxForecast {
		ending := &leaving[minute%session]
		active -= *ending
		admitted := max(0, min(s.NewUsersPerMinute, s.TotalActiveUsers-active, waiting))
		waiting -= admitted
		if minute == 0 {
			f.AtOnce = max(0, admitted-s.Queued)
		}
		if waiting == 0 {
			f.LastWait = time.Duration(minute) * time.Minute
			return f
		}
		active += admitted
		*ending = admitted
	}
	f.Endless = true
	return f
}
