// Package wasmill is for functions of Wasmill in Go: one record at a time, with state, output and the tables of others.
//
// A function is what [Export] is given in an init function of package main. Behind it, a batch of records crosses the boundary at once: state is read by one call for all keys of a batch, kept
// until the batch is done, and written back by one call, and so is all else. For go test, which compiles for the machine at hand, [NewHarness] has a host in memory.
//
// Slices that are given to a function live until the call is done; those that it gives are copied.
package wasmill

import (
	"encoding/json"
	"fmt"
	"math"
)

// NoTime is the time of records that have none.
const NoTime = math.MinInt64

// Record is what a function works on.
type Record struct {
	// Key is what the stream is partitioned by: all records of a key come to one instance, in order.
	Key []byte
	// Value is the record itself.
	Value []byte
	// Time is the event time in milliseconds since the Unix epoch, or NoTime.
	Time int64
}

// JSON reads the value.
func (r Record) JSON(into any) error {
	return json.Unmarshal(r.Value, into)
}

// Function works on records. An error refuses the record, and undoes what it has done. An instance may keep only what follows from its config: it is replaced after any failure.
type Function interface {
	Process(record Record, context *Context) error
}

// Prefetcher is what a function may be, too: it says what Process will look up, for all records of a batch before the first is worked on.
type Prefetcher interface {
	Prefetch(record Record, wants *Wants)
}

// Description is what a function says of itself.
type Description struct {
	Name    string
	Version string
	// Tables are the function's own.
	Tables []Described
	// Ports are those that it emits on beside "out".
	Ports []string
	// Uses are the tables of others that it looks up or changes.
	Uses []Used
}

var (
	described   Description
	newFunction func(config []byte) (Function, error)
)

// Export makes a component of a function. To be called once, by an init function of package main. What makes an instance gets the operator's config as a JSON object.
func Export(description Description, make func(config []byte) (Function, error)) {
	described, newFunction = description, make
}

// Table is a table of the function's own that holds values of type T.
type Table[T any] struct {
	name          string
	schemaVersion uint32
	codec         codec[T]
	isOpen        bool
	isOrdered     bool
}

// NewTable is a table whose values are stored as JSON.
func NewTable[T any](name string) *Table[T] {
	return &Table[T]{name: name, schemaVersion: 1, codec: jsonCodec[T]()}
}

// NewBytesTable is a table whose values are stored as they are.
func NewBytesTable(name string) *Table[[]byte] {
	return &Table[[]byte]{name: name, schemaVersion: 1, codec: bytesCodec()}
}

// SchemaVersion says which version of its values' encoding the table has, from 1 on: raise it when that changes.
func (t *Table[T]) SchemaVersion(version uint32) *Table[T] {
	t.schemaVersion = version
	return t
}

// Open lets the rest of the job read and change the table, where the manifest says so, too.
func (t *Table[T]) Open() *Table[T] {
	t.isOpen = true
	return t
}

// Ordered lets the table be scanned.
func (t *Table[T]) Ordered() *Table[T] {
	t.isOrdered = true
	return t
}

// Get is the value of a key, and whether it has one.
func (t *Table[T]) Get(context *Context, key []byte) (value T, found bool, err error) {
	stored, found, err := context.batch.read(context.batch.cellsOf(t.name, true, Live), key)
	if err != nil || !found {
		return value, false, err
	}
	value, err = t.codec.decode(stored)
	return value, err == nil, err
}

// Put sets the value of a key.
func (t *Table[T]) Put(context *Context, key []byte, value T) error {
	stored, err := t.codec.encode(value)
	if err == nil {
		context.batch.change(t.name, key, stored, true)
	}
	return err
}

// Delete removes the value of a key.
func (t *Table[T]) Delete(context *Context, key []byte) {
	context.batch.change(t.name, key, nil, false)
}

// Described is a table as a description has it.
type Described interface {
	describe() (name string, schemaVersion uint32, isOpen, isOrdered bool)
}

func (t *Table[T]) describe() (string, uint32, bool, bool) {
	return t.name, t.schemaVersion, t.isOpen, t.isOrdered
}

// Consistency is which state a lookup sees; the contract, wit/tables.wit, says more of it.
type Consistency struct {
	kind     uint32
	argument uint64
}

// Live is the latest batch that the owner has applied, Committed the last committed epoch.
var (
	Live      = Consistency{kind: 0}
	Committed = Consistency{kind: 1}
)

// AsOf is a committed epoch that is still retained.
func AsOf(epoch uint64) Consistency { return Consistency{kind: 2, argument: epoch} }

// BoundedMilliseconds is as Live, but may be so old.
func BoundedMilliseconds(age uint64) Consistency { return Consistency{kind: 3, argument: age} }

// Change is how an update changes the value that it finds; numbers are little-endian.
type Change uint8

// The changes there are.
const (
	Put Change = iota
	PutIfAbsent
	Delete
	AddS64
	AddF32
	AddF64
	MinS64
	MaxS64
	MinF32
	MaxF32
	MinF64
	MaxF64
)

// UsedTable is a table of anyone, by the name that uses.NAME in the manifest has.
type UsedTable[T any] struct {
	name  string
	codec codec[T]
}

// Use is a table of others whose values are stored as JSON.
func Use[T any](name string) *UsedTable[T] { return &UsedTable[T]{name, jsonCodec[T]()} }

// UseBytes is a table of others whose values are taken as they are.
func UseBytes(name string) *UsedTable[[]byte] { return &UsedTable[[]byte]{name, bytesCodec()} }

// Used is a table of others as a description has it.
type Used interface{ used() string }

func (t *UsedTable[T]) used() string { return t.name }

// Lookup is the value of a key, as of the latest batch that its owner has applied, and whether it has one.
func (t *UsedTable[T]) Lookup(context *Context, key []byte) (T, bool, error) {
	return t.LookupAt(context, key, Live)
}

// LookupAt is Lookup with another consistency.
func (t *UsedTable[T]) LookupAt(context *Context, key []byte, consistency Consistency) (value T, found bool, err error) {
	stored, found, err := context.batch.read(context.batch.cellsOf(t.name, false, consistency), key)
	if err != nil || !found {
		return value, false, err
	}
	value, err = t.codec.decode(stored)
	return value, err == nil, err
}

// Update changes the value of a key, exactly once, after the batch has succeeded.
func (t *UsedTable[T]) Update(context *Context, key []byte, change Change, operand []byte) {
	context.batch.update(t.name, key, change, operand)
}

// Add adds to a number of 64 bits.
func (t *UsedTable[T]) Add(context *Context, key []byte, number int64) {
	context.batch.update(t.name, key, AddS64, littleEndian(uint64(number)))
}

// Send gives a record to the function that owns the table.
func (t *UsedTable[T]) Send(context *Context, key, value []byte) {
	context.batch.leave(t.name, true, key, value, context.batch.time)
}

// Wants is what a batch will look up.
type Wants struct{ batch *batch }

// Want has Lookup of this key find its value without a call of its own.
func (w *Wants) Want(table Used, key []byte) {
	w.batch.cellsOf(table.used(), false, Live).of(key)
}

// Context is what a function may do while it works on a record.
type Context struct{ batch *batch }

// Emit emits a record on the port "out", with the time of the record that is worked on.
func (c *Context) Emit(key, value []byte) {
	c.batch.leave("out", false, key, value, c.batch.time)
}

// EmitJSON emits a value as JSON.
func (c *Context) EmitJSON(key []byte, value any) error {
	encoded, err := json.Marshal(value)
	if err == nil {
		c.Emit(key, encoded)
	}
	return err
}

// EmitTo emits a record on a port, with a time.
func (c *Context) EmitTo(port string, key, value []byte, time int64) {
	c.batch.leave(port, false, key, value, time)
}

// Info writes a line to the job's log, even when the batch fails.
func (c *Context) Info(format string, arguments ...any) { writeLog(levelInfo, format, arguments...) }

// Warn writes a line that somebody should read.
func (c *Context) Warn(format string, arguments ...any) { writeLog(levelWarn, format, arguments...) }

// Count adds to a counter; not for a refused record.
func (c *Context) Count(name string, by uint64) { c.batch.figure(name, false, by) }

// Gauge sets a gauge.
func (c *Context) Gauge(name string, value float64) {
	c.batch.figure(name, true, math.Float64bits(value))
}

// AtFault says that the record which is worked on is to blame if the call never ends. Panics name theirs.
func (c *Context) AtFault() { hostBeginRecord(c.batch.record) }

const (
	levelInfo  = 2
	levelWarn  = 3
	levelError = 4
)

func writeLog(level int32, format string, arguments ...any) {
	hostLog(level, clean(fmt.Sprintf(format, arguments...)))
}

type codec[T any] struct {
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)
}

func jsonCodec[T any]() codec[T] {
	return codec[T]{
		encode: func(value T) ([]byte, error) { return json.Marshal(value) },
		decode: func(stored []byte) (value T, err error) {
			err = json.Unmarshal(stored, &value)
			return value, err
		},
	}
}

func bytesCodec() codec[[]byte] {
	same := func(value []byte) ([]byte, error) { return value, nil }
	return codec[[]byte]{encode: same, decode: same}
}
