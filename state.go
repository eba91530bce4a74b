package mirror

import "fmt"

// State is what one mirrored partition is doing. Trouble in reaching the source is not a state: see Health. The codes are those
// of KIP-1279; 1 and 2 are unused here (see DIVERGENCE.md).
//
//	            add                   aligned
//	UNKNOWN ----------> PREPARING ------------> MIRRORING
//	                     ^  ^  |  <--divergence--   | | pause
//	                     |  |  |                    | +----> PAUSING --> PAUSED
//	                     |  |  +-----> STOPPING <---+---------+------------+
//	                     |  |             v                                |
//	                     |  +-- resume -- STOPPED                          |
//	                     +----- resume ------------------------------------+
//
//	FAILED: from any; a retry or Recover goes back to the state before the failure; may be paused and stopped
type State int8

const (
	// Unknown has no stored record.
	Unknown State = -1
	// Preparing finds out what of the log is the source's, and cuts what is not.
	Preparing State = 0
	// Mirroring appends what the source has, as it comes.
	Mirroring State = 3
	// Pausing ends fetching.
	Pausing State = 4
	// Paused does nothing; the topic stays read-only.
	Paused State = 5
	// Stopping ends fetching and stores the last mirrored position.
	Stopping State = 6
	// Stopped does nothing; the position is stored.
	Stopped State = 7
	// Failed waits for a retry, or for someone to decide. It remembers the state before the first failure.
	Failed State = 8
)

var stateNames = map[State]string{
	Unknown: "UNKNOWN", Preparing: "PREPARING", Mirroring: "MIRRORING", Pausing: "PAUSING", Paused: "PAUSED",
	Stopping: "STOPPING", Stopped: "STOPPED", Failed: "FAILED",
}

func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("State(%d)", int8(s))
}

// IsZero says that there is no state: encoders leave it out where that is wished (omitzero).
func (s State) IsZero() bool { return s == Unknown }

// MarshalText gives the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes a name.
func (s *State) UnmarshalText(b []byte) error {
	for state, name := range stateNames {
		if name == string(b) {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("unknown state %q", b)
}

// Health says how well a partition that is to be mirrored gets on.
type Health string

const (
	// OK is caught up, or idle by wish.
	OK Health = "OK"
	// CatchingUp gets records and is behind.
	CatchingUp Health = "CATCHING_UP"
	// Stalled is behind and has got nothing for a while, or its coordinator was fenced.
	Stalled Health = "STALLED"
	// Unreachable cannot speak to the source, or not to the partition's leader; it is retried for ever.
	Unreachable Health = "UNREACHABLE"
)

// event is what moves a partition from one state to another.
type event string

const (
	evPrepare event = "prepare" // mirroring is wished, nothing is aligned yet
	evAligned event = "aligned" // the log is a prefix of the source's
	evDiverge event = "diverge" // the source's answer says it is not
	evPause   event = "pause"   // paused is wished
	evStop    event = "stop"    // stopped is wished
	evSettle  event = "settle"  // what Pausing or Stopping does is done
	evFail    event = "fail"
	evRetry   event = "retry" // back to the state before the first failure
)

// transitions has no row for what is illegal; FAILED's retry is not here because its target is remembered, not fixed.
var transitions = map[State]map[event]State{
	Unknown:   {evPrepare: Preparing, evStop: Stopping, evPause: Pausing, evFail: Failed},
	Preparing: {evAligned: Mirroring, evPrepare: Preparing, evDiverge: Preparing, evPause: Pausing, evStop: Stopping, evFail: Failed},
	Mirroring: {evDiverge: Preparing, evPause: Pausing, evStop: Stopping, evFail: Failed},
	Pausing:   {evSettle: Paused, evPrepare: Preparing, evStop: Stopping, evFail: Failed},
	Paused:    {evPrepare: Preparing, evStop: Stopping, evFail: Failed},
	Stopping:  {evSettle: Stopped, evFail: Failed},
	Stopped:   {evPrepare: Preparing, evFail: Failed},
	Failed:    {evPause: Pausing, evStop: Stopping, evFail: Failed},
}

// next is the state after an event; before is what FAILED remembers. Not ok: the event does nothing in this state.
func next(s, before State, e event) (State, bool) {
	if s == Failed && e == evRetry {
		if before == Unknown || before == Failed {
			before = Preparing
		}
		return before, true
	}
	to, ok := transitions[s][e]
	return to, ok
}

// wish is the desired state of a topic; its values are those of State.
type wish = State

// pursue says which event brings a partition nearer to what is wished for its topic; "" if there is nothing to begin (what
// Preparing, Pausing and Stopping do is their own matter). A paused partition is aligned again: its source has gone on without it.
func pursue(s State, wished wish) event {
	switch wished {
	case Stopped:
		if s != Stopped && s != Stopping {
			return evStop
		}
	case Paused:
		switch s {
		case Unknown, Preparing, Mirroring:
			return evPause
		}
	case Mirroring:
		switch {
		case s == Unknown, s == Pausing, s == Paused: // STOPPED is left by beginRound only: it decides what the next round begins with
			return evPrepare
		}
	}
	return ""
}
