//go:build !wasm

package wasmill

import (
	"fmt"
	"os"
)

// Harness is a host in memory, for tests of functions on the machine that one works on. Each call of [Harness.Process] is a batch; state lasts from one to the next. Limits, endless loops and
// scans are not in it.
type Harness struct {
	function Function
	own      map[place][]byte
	others   map[place][]byte
	outcome  Outcome
	// What the batch has written, to be kept if it succeeds.
	writes []write
}

type place struct{ table, key string }

type write struct {
	place
	value  []byte
	record uint32
}

// Outcome is what a batch has come to.
type Outcome struct {
	Emitted []Effect
	// Updated and Sent are what it does to tables of others; it is not applied.
	Updated []Effect
	Sent    []Effect
	// Rejected are the reasons of refused records, by their index.
	Rejected map[uint32]string
	Counts   map[string]uint64
}

// Effect is a record emitted on a port or sent to a table, or an update of one.
type Effect struct {
	// To is the port or the table.
	To     string
	Key    string
	Value  string
	Time   int64
	Change Change
	// Record is the index of the record that has caused it.
	Record uint32
}

// Texts are the values of what was emitted.
func (o Outcome) Texts() []string {
	var texts []string
	for _, each := range o.Emitted {
		texts = append(texts, each.Value)
	}
	return texts
}

// The harness whose function runs: a function knows its host by nothing that could name another.
var running *Harness

// NewHarness makes an instance of the function that was given to Export.
func NewHarness(config string) (*Harness, error) {
	made, err := newFunction([]byte(config))
	return &Harness{function: made, own: map[place][]byte{}, others: map[place][]byte{}}, err
}

// TestRecord is a record without a time.
func TestRecord(key, value string) Record {
	return Record{Key: []byte(key), Value: []byte(value), Time: NoTime}
}

// Other fills a table of others.
func (h *Harness) Other(table, key, value string) {
	h.others[place{table, key}] = []byte(value)
}

// State is the stored value of a key of an own table.
func (h *Harness) State(table, key string) (string, bool) {
	value, found := h.own[place{table, key}]
	return string(value), found
}

// Process has records worked on as one batch. An error is one of the call as a whole: nothing of it has happened.
func (h *Harness) Process(records ...Record) (Outcome, error) {
	batch := &batch{}
	for _, record := range records {
		batch.keys.push(record.Key)
		batch.values.push(record.Value)
		batch.times = append(batch.times, record.Time)
	}
	h.outcome, h.writes = Outcome{Rejected: map[uint32]string{}, Counts: map[string]uint64{}}, nil
	running = h
	if err := batch.work(h.function); err != nil {
		return Outcome{}, err
	}
	for _, each := range h.writes {
		if each.value == nil {
			delete(h.own, each.place)
		} else {
			h.own[each.place] = each.value
		}
	}
	return h.outcome, nil
}

func hostGetMany(isOwn bool, table string, keys *column, _ Consistency) (column, []byte, error) {
	from := running.others
	if isOwn {
		from = running.own
	}
	var values column
	isPresent := make([]byte, keys.len())
	for index := range keys.len() {
		value, found := from[place{table, string(keys.item(index))}]
		values.push(value)
		if found {
			isPresent[index] = 1
		}
	}
	return values, isPresent, nil
}

func hostPutMany(table string, keys, values *column, records []uint32) error {
	for index, record := range records {
		value := append([]byte{}, values.item(index)...)
		running.writes = append(running.writes, write{place{table, string(keys.item(index))}, value, record})
	}
	return nil
}

func hostDeleteMany(table string, keys *column, records []uint32) error {
	for index, record := range records {
		running.writes = append(running.writes, write{place{table, string(keys.item(index))}, nil, record})
	}
	return nil
}

func hostLeave(leaving *leaving) error {
	to := &running.outcome.Emitted
	if leaving.isSent {
		to = &running.outcome.Sent
	}
	for index, record := range leaving.records {
		key, value := string(leaving.keys.item(index)), string(leaving.values.item(index))
		*to = append(*to, Effect{To: leaving.name, Key: key, Value: value, Time: leaving.times[index], Record: record})
	}
	return nil
}

func hostUpdateMany(updates *updates) error {
	for index, record := range updates.records {
		effect := Effect{To: updates.table, Key: string(updates.keys.item(index)), Time: NoTime, Change: updates.change, Record: record}
		if updates.change != Delete {
			effect.Value = string(updates.values.item(index))
		}
		running.outcome.Updated = append(running.outcome.Updated, effect)
	}
	return nil
}

func hostFigures(figures *figures) {
	if figures.isGauge {
		return
	}
	for _, value := range figures.values {
		running.outcome.Counts[figures.name] += value
	}
}

func hostReject(record uint32, reason string) { running.outcome.Rejected[record] = reason }

func hostLog(level int32, line string) {
	names := []string{"trace", "debug", "info", "warn", "error"}
	fmt.Fprintf(os.Stderr, "%s: %s\n", names[min(int(level), len(names)-1)], line)
}

func hostBeginRecord(uint32) {}
