package main

import (
	"fmt"
	"io"
)

// A step is a point of a charge at which the process can die.
type step string

const (
	claimed      step = "claimed"      // the order is claimed; nothing is noted down
	checkpointed step = "checkpointed" // it is noted down that the provider will be called
	lost         step = "lost"         // the provider has the request, and will never carry it out
	late         step = "late"         // the provider has the request, and will carry it out after the death
	unanswered   step = "unanswered"   // the charge is booked; the answer is on its way
	charged      step = "charged"      // the answer is here; it is not recorded
	completed    step = "completed"    // the order is completed
)

// steps has all of them in their order.
var steps = []struct {
	step
	what string
}{
	{claimed, "before the checkpoint"},
	{checkpointed, "after the checkpoint"},
	{lost, "in the call, which is lost"},
	{late, "in the call, which is late"},
	{unanswered, "after the effect"},
	{charged, "before completing"},
	{completed, "after completing"},
}

func stepNames() (names []string) {
	for _, s := range steps {
		names = append(names, string(s.step))
	}
	return names
}

// A hang is where a charge hangs for ever, so that it can be killed there. The nil
// hang does not.
type hang struct {
	at step
	w  io.Writer
}

func hangAt(name string, w io.Writer) (*hang, error) {
	if name == "" {
		return nil, nil
	}
	for _, s := range steps {
		if string(s.step) == name {
			return &hang{s.step, w}, nil
		}
	}
	return nil, fmt.Errorf("there is no step %q", name)
}

// reached says that the charge is at a step of its own.
func (h *hang) reached(s step) {
	if h == nil || h.at != s {
		return
	}
	fmt.Fprintf(h.w, "hanging at %s\n", s)
	select {}
}

// atProvider returns the step at which the provider is to hang, or "".
func (h *hang) atProvider() step {
	if h != nil && (h.at == lost || h.at == late || h.at == unanswered) {
		return h.at
	}
	return ""
}
