package wasmill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// A column is byte strings, one after another, and where each ends.
type column struct {
	bytes []byte
	ends  []uint32
}

func (c *column) len() int { return len(c.ends) }

func (c *column) item(index int) []byte {
	begin := uint32(0)
	if index > 0 {
		begin = c.ends[index-1]
	}
	return c.bytes[begin:c.ends[index]:c.ends[index]]
}

func (c *column) push(item []byte) {
	c.bytes = append(c.bytes, item...)
	c.ends = append(c.ends, uint32(len(c.bytes)))
}

func (c *column) cut(length int) {
	c.ends = c.ends[:length]
	end := uint32(0)
	if length > 0 {
		end = c.ends[length-1]
	}
	c.bytes = c.bytes[:end]
}

// A cell is what is known of a key of a table.
type cell struct {
	key                string
	isKnown, isPresent bool
	isChanged          bool
	value              []byte
	// The record that has changed it last.
	record uint32
}

// Cells are the keys of a table that the batch has come upon: of an own one, or as a lookup sees it.
type cells struct {
	table       string
	isOwn       bool
	consistency Consistency
	isFetched   bool
	byKey       map[string]*cell
	inOrder     []*cell
}

func (c *cells) of(key []byte) *cell {
	if found, ok := c.byKey[string(key)]; ok {
		return found
	}
	made := &cell{key: string(key)}
	c.byKey[made.key] = made
	c.inOrder = append(c.inOrder, made)
	return made
}

// Asks the host for all cells that are not known.
func (c *cells) fetch() error {
	var keys column
	var asked []*cell
	for _, each := range c.inOrder {
		if !each.isKnown {
			keys.push([]byte(each.key))
			asked = append(asked, each)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	values, isPresent, err := hostGetMany(c.isOwn, c.table, &keys, c.consistency)
	if err != nil {
		return err
	}
	for index, each := range asked {
		each.isKnown, each.isPresent, each.value = true, isPresent[index] != 0, values.item(index)
	}
	return nil
}

// Leaving are records on their way: emitted on a port, or sent to the owner of a table.
type leaving struct {
	name         string
	isSent       bool
	keys, values column
	times        []int64
	records      []uint32
}

// Updates are those of one kind in a row.
type updates struct {
	table        string
	change       Change
	keys, values column
	records      []uint32
}

// Figures are changes of a metric.
type figures struct {
	name    string
	isGauge bool
	values  []uint64
	records []uint32
}

// A batch is the call under way.
type batch struct {
	keys, values column
	times        []int64
	record       uint32
	time         int64
	cells        []*cells
	leaving      []*leaving
	updates      []*updates
	figures      []*figures
	// Cells as they were before the record changed them.
	undo []func()
}

func (b *batch) cellsOf(table string, isOwn bool, consistency Consistency) *cells {
	for _, each := range b.cells {
		if each.table == table && each.isOwn == isOwn && each.consistency == consistency {
			return each
		}
	}
	made := &cells{table: table, isOwn: isOwn, consistency: consistency, byKey: map[string]*cell{}}
	b.cells = append(b.cells, made)
	return made
}

// The value of a key; where it is not known, it is asked for, the first time along with the keys of all records.
func (b *batch) read(of *cells, key []byte) ([]byte, bool, error) {
	found := of.of(key)
	if !found.isKnown && of.isOwn && !of.isFetched {
		of.isFetched = true
		for index := range b.keys.len() {
			of.of(b.keys.item(index))
		}
		// Where some key is not this task's, all stay not known: each is asked for alone.
		_ = of.fetch()
	}
	if !found.isKnown {
		alone := cells{table: of.table, isOwn: of.isOwn, consistency: of.consistency, inOrder: []*cell{found}}
		if err := alone.fetch(); err != nil {
			return nil, false, err
		}
	}
	return found.value, found.isPresent, nil
}

func (b *batch) change(table string, key, value []byte, isPresent bool) {
	changed := b.cellsOf(table, true, Live).of(key)
	before := *changed
	b.undo = append(b.undo, func() { *changed = before })
	changed.isKnown, changed.isChanged, changed.isPresent = true, true, isPresent
	changed.value, changed.record = slices.Clone(value), b.record
}

func (b *batch) leave(name string, isSent bool, key, value []byte, time int64) {
	at := slices.IndexFunc(b.leaving, func(each *leaving) bool { return each.name == name && each.isSent == isSent })
	if at < 0 {
		at = len(b.leaving)
		b.leaving = append(b.leaving, &leaving{name: name, isSent: isSent})
	}
	to := b.leaving[at]
	to.keys.push(key)
	to.values.push(value)
	to.times, to.records = append(to.times, time), append(to.records, b.record)
}

func (b *batch) update(table string, key []byte, change Change, operand []byte) {
	// In the order of their calls: only those that follow each other go together.
	if last := len(b.updates) - 1; last < 0 || b.updates[last].table != table || b.updates[last].change != change {
		b.updates = append(b.updates, &updates{table: table, change: change})
	}
	to := b.updates[len(b.updates)-1]
	to.keys.push(key)
	if change != Delete {
		to.values.push(operand)
	}
	to.records = append(to.records, b.record)
}

func (b *batch) figure(name string, isGauge bool, value uint64) {
	at := slices.IndexFunc(b.figures, func(each *figures) bool { return each.name == name && each.isGauge == isGauge })
	if at < 0 {
		at = len(b.figures)
		b.figures = append(b.figures, &figures{name: name, isGauge: isGauge})
	}
	to := b.figures[at]
	to.values, to.records = append(to.values, value), append(to.records, b.record)
}

// How many of the records at the end are not this one.
func without(records []uint32, record uint32) int {
	length := len(records)
	for length > 0 && records[length-1] == record {
		length--
	}
	return length
}

// Takes back what the record has done so far.
func (b *batch) takeBack() {
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
	for _, each := range b.leaving {
		length := without(each.records, b.record)
		each.keys.cut(length)
		each.values.cut(length)
		each.times, each.records = each.times[:length], each.records[:length]
	}
	for _, each := range b.updates {
		length := without(each.records, b.record)
		each.keys.cut(length)
		if each.change != Delete {
			each.values.cut(length)
		}
		each.records = each.records[:length]
	}
	for _, each := range b.figures {
		length := without(each.records, b.record)
		each.values, each.records = each.values[:length], each.records[:length]
	}
}

// Gives the host all that the records have done.
func (b *batch) handOver() error {
	for _, each := range b.cells {
		if err := each.handOver(); err != nil {
			return err
		}
	}
	for _, each := range b.updates {
		if len(each.records) > 0 {
			if err := hostUpdateMany(each); err != nil {
				return err
			}
		}
	}
	for _, each := range b.leaving {
		if len(each.records) > 0 {
			if err := hostLeave(each); err != nil {
				return err
			}
		}
	}
	for _, each := range b.figures {
		if len(each.records) > 0 {
			hostFigures(each)
		}
	}
	return nil
}

func (c *cells) handOver() error {
	var putKeys, putValues, deletedKeys column
	var putRecords, deletedRecords []uint32
	for _, each := range c.inOrder {
		switch {
		case !c.isOwn || !each.isChanged:
		case each.isPresent:
			putKeys.push([]byte(each.key))
			putValues.push(each.value)
			putRecords = append(putRecords, each.record)
		default:
			deletedKeys.push([]byte(each.key))
			deletedRecords = append(deletedRecords, each.record)
		}
	}
	var err error
	if len(putRecords) > 0 {
		err = hostPutMany(c.table, &putKeys, &putValues, putRecords)
	}
	if err == nil && len(deletedRecords) > 0 {
		err = hostDeleteMany(c.table, &deletedKeys, deletedRecords)
	}
	return err
}

// Works on all records. An error is one of the call as a whole: nothing of it has happened.
func (b *batch) work(function Function) error {
	if prefetcher, ok := function.(Prefetcher); ok {
		for index := range b.keys.len() {
			prefetcher.Prefetch(b.begin(index), &Wants{b})
		}
		for _, each := range b.cells {
			// What the host refuses for all keys together is asked for, and refused, key by key.
			_ = each.fetch()
		}
	}
	context := &Context{b}
	for index := range b.keys.len() {
		record := b.begin(index)
		b.undo = b.undo[:0]
		err := process(function, record, context)
		var panicked panicError
		if errors.As(err, &panicked) || isNotYet(err) {
			return err
		}
		if err != nil {
			b.takeBack()
			hostReject(b.record, clean(err.Error()))
		}
	}
	return b.handOver()
}

func (b *batch) begin(index int) Record {
	b.record, b.time = uint32(index), b.times[index]
	return Record{Key: b.keys.item(index), Value: b.values.item(index), Time: b.time}
}

// A panic of a function's, which leaves its instance in no known state.
type panicError struct{ text string }

func (p panicError) Error() string { return p.text }

func process(function Function, record Record, context *Context) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			hostBeginRecord(context.batch.record)
			err = panicError{fmt.Sprintf("panic: %v\n%s", reason, debug.Stack())}
			writeLog(levelError, "%s", err)
		}
	}()
	return function.Process(record, context)
}

// A hostError is why the host refused a call.
type hostError struct {
	kind uint8
	text string
}

func (e hostError) Error() string { return e.text }

const kindNotYet = 5

func isNotYet(err error) bool {
	var refused hostError
	return errors.As(err, &refused) && refused.kind == kindNotYet
}

// The text with "?" for what is not UTF-8: the host traps where it is handed such a text.
func clean(text string) string { return strings.ToValidUTF8(text, "?") }

func littleEndian(number uint64) []byte { return binary.LittleEndian.AppendUint64(nil, number) }
