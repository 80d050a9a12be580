package main

// The log as docs/reading.md and docs/writing.md promise it, as a sequential object:
//
//	append(values) at offset, by the writer of epoch: adds them, all or none, if the log is that long,
//	    if that epoch has the log, and if that is the offset that was expected, if one was
//	takeover of epoch at offset: from here on only that epoch appends, and the log is that long
//	end: the log is that long
//	read: all values, from the first to the end; a read whose end was not certain: the first of them
//
// An append without an answer takes effect at any time after its call, or never. One that was refused
// is not in the history at all: a read that has its value finds nobody who appended it.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

const unknown = -1

// An operation as the histories have it, one JSON object a line.
type operation struct {
	History  string   `json:"history"`
	Client   string   `json:"client"`
	Op       string   `json:"op"`
	Call     int64    `json:"call"`
	Return   *int64   `json:"return"` // null: no answer, or one that the outcome is unknown
	Values   []string `json:"values"`
	Offset   int      `json:"offset"`   // of the first value; of a takeover or an end: the length; -1: unknown
	Expected int      `json:"expected"` // -1: any
	Epoch    int      `json:"epoch"`
	Certain  bool     `json:"certain"` // of a read

	digest [sha256.Size]byte // of a read: of all of its values
}

func (o *operation) String() string {
	var what string
	switch o.Op {
	case "append":
		what = fmt.Sprintf("epoch %d appends %s", o.Epoch, short(o.Values))
		if o.Expected != unknown {
			what += fmt.Sprintf(", for offset %d", o.Expected)
		}
		if o.Return == nil {
			what += ": no outcome"
		}
		if o.Offset != unknown {
			what += fmt.Sprintf(" at %d", o.Offset)
		}
	case "takeover":
		what = fmt.Sprintf("epoch %d takes the log over at %d", o.Epoch, o.Offset)
	case "end":
		what = fmt.Sprintf("is told that the log ends at %d", o.Offset)
	case "deposit", "transfer", "balances":
		what = o.ofBank()
	default:
		what = fmt.Sprintf("reads %d records, up to %s", len(o.Values), last(o.Values))
		if !o.Certain {
			what += ", and not certainly all"
		}
	}
	until := "never"
	if o.Return != nil {
		until = fmt.Sprint(*o.Return)
	}
	return fmt.Sprintf("%s [%d, %s] %s", o.Client, o.Call, until, what)
}

// A log is its last record and the log before it; two are equal if their digests are.
type record struct {
	before *record
	length int
	value  string
	digest [sha256.Size]byte
}

type state struct {
	epoch int
	tip   *record
}

var empty = &record{}

func (r *record) with(values []string) *record {
	for _, value := range values {
		sum := sha256.Sum256(append(r.digest[:], value...))
		r = &record{r, r.length + 1, value, sum}
	}
	return r
}

func (r *record) upTo(length int) *record {
	for r.length > length {
		r = r.before
	}
	return r
}

func step(at state, o *operation) []interface{} {
	length := at.tip.length
	stays := []interface{}{at}
	switch o.Op {
	case "append":
		fits := at.epoch == o.Epoch && (o.Offset == unknown || o.Offset == length) &&
			(o.Expected == unknown || o.Expected == length)
		if !fits && o.Return == nil {
			return stays // it has no effect, or none yet
		}
		if !fits {
			return nil
		}
		after := state{at.epoch, at.tip.with(o.Values)}
		if o.Return == nil {
			return []interface{}{at, after}
		}
		return []interface{}{after}
	case "takeover":
		if o.Epoch > at.epoch && o.Offset == length {
			return []interface{}{state{o.Epoch, at.tip}}
		}
	case "end":
		if o.Offset == length {
			return stays
		}
	case "read":
		enough := len(o.Values) == length || (!o.Certain && len(o.Values) < length)
		if enough && at.tip.upTo(len(o.Values)).digest == o.digest {
			return stays
		}
	default:
		panic("nobody knows the operation " + o.Op)
	}
	return nil
}

func model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{0, empty}} },
		Step: func(at, input, _ interface{}) []interface{} {
			return step(at.(state), input.(*operation))
		},
		Equal: func(a, b interface{}) bool {
			one, other := a.(state), b.(state)
			return one.epoch == other.epoch && one.tip.length == other.tip.length &&
				bytes.Equal(one.tip.digest[:], other.tip.digest[:])
		},
		Hash: func(at interface{}) uint64 {
			of := at.(state)
			return binary.LittleEndian.Uint64(of.tip.digest[:8]) + uint64(of.epoch)
		},
		DescribeOperation: func(input, _ interface{}) string { return input.(*operation).String() },
		DescribeState:     func(at interface{}) string { return describe(at.(state)) },
	}
	return nondeterministic.ToModel()
}

func describe(at state) string {
	return fmt.Sprintf("%d records in epoch %d, the last is %s", at.tip.length, at.epoch, at.tip.value)
}

func short(values []string) string {
	if len(values) > 3 {
		return fmt.Sprintf("%s, ... (%d)", values[0], len(values))
	}
	return strings.Join(values, ", ")
}

func last(values []string) string {
	if len(values) == 0 {
		return "none"
	}
	return values[len(values)-1]
}
