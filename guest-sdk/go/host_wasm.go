package wasmill

import "unsafe"

// The contract of Wasmill as Go sees it: what wit/ says, in the layout that the component model's canonical ABI gives it. Addresses have 32 bits there and 64 in Go.

//go:wasmimport wasmill:operator/state@0.1.0 get-many
func stateGetMany(table unsafe.Pointer, tableLength uint32, keys unsafe.Pointer, keysLength uint32, ends unsafe.Pointer, length uint32, result unsafe.Pointer)

//go:wasmimport wasmill:operator/state@0.1.0 put-many
func statePutMany(table unsafe.Pointer, tableLength uint32, keys unsafe.Pointer, keysLength uint32, keyEnds unsafe.Pointer, keyEndsLength uint32, values unsafe.Pointer, valuesLength uint32,
	valueEnds unsafe.Pointer, valueEndsLength uint32, records unsafe.Pointer, recordsLength uint32, result unsafe.Pointer)

//go:wasmimport wasmill:operator/state@0.1.0 delete-many
func stateDeleteMany(table unsafe.Pointer, tableLength uint32, keys unsafe.Pointer, keysLength uint32, ends unsafe.Pointer, length uint32, records unsafe.Pointer, recordsLength uint32,
	result unsafe.Pointer)

//go:wasmimport wasmill:operator/tables@0.1.0 get-many
func tablesGetMany(table unsafe.Pointer, tableLength uint32, keys unsafe.Pointer, keysLength uint32, ends unsafe.Pointer, length uint32, kind uint32, argument uint64, rest uint32,
	result unsafe.Pointer)

//go:wasmimport wasmill:operator/tables@0.1.0 update-many
func tablesUpdateMany(parameters unsafe.Pointer, result unsafe.Pointer)

//go:wasmimport wasmill:operator/tables@0.1.0 send
func tablesSend(table unsafe.Pointer, tableLength uint32, keys unsafe.Pointer, keysLength uint32, keyEnds unsafe.Pointer, keyEndsLength uint32, values unsafe.Pointer, valuesLength uint32,
	valueEnds unsafe.Pointer, valueEndsLength uint32, times unsafe.Pointer, timesLength uint32, records unsafe.Pointer, recordsLength uint32, result unsafe.Pointer)

//go:wasmimport wasmill:operator/output@0.1.0 emit
func outputEmit(port unsafe.Pointer, portLength uint32, keys unsafe.Pointer, keysLength uint32, keyEnds unsafe.Pointer, keyEndsLength uint32, values unsafe.Pointer, valuesLength uint32,
	valueEnds unsafe.Pointer, valueEndsLength uint32, times unsafe.Pointer, timesLength uint32, records unsafe.Pointer, recordsLength uint32, result unsafe.Pointer)

//go:wasmimport wasmill:operator/log@0.1.0 write
func logWrite(level int32, line unsafe.Pointer, length uint32)

//go:wasmimport wasmill:operator/metrics@0.1.0 count-many
func metricsCountMany(name unsafe.Pointer, nameLength uint32, by unsafe.Pointer, byLength uint32, records unsafe.Pointer, recordsLength uint32)

//go:wasmimport wasmill:operator/metrics@0.1.0 gauge-many
func metricsGaugeMany(name unsafe.Pointer, nameLength uint32, values unsafe.Pointer, valuesLength uint32, records unsafe.Pointer, recordsLength uint32)

//go:wasmimport wasmill:operator/culprit@0.1.0 reject
func culpritReject(record uint32, reason unsafe.Pointer, length uint32)

//go:wasmimport wasmill:operator/culprit@0.1.0 begin-record
func hostBeginRecord(record uint32)

//go:wasmimport wasmill:operator/declare@0.1.0 open-table
func declareOpenTable(table unsafe.Pointer, length uint32)

//go:wasmimport wasmill:operator/declare@0.1.0 ordered-table
func declareOrderedTable(table unsafe.Pointer, length uint32)

//go:wasmimport wasmill:operator/declare@0.1.0 uses-table
func declareUsesTable(table unsafe.Pointer, length uint32)

// ---- Memory ----

// What the host has put into this call, or will read of its answer. It is kept alive until the call is done.
var held []any

var nothing uint64

// Where the host puts what it gives.
//
//go:wasmexport cabi_realloc
func reallocate(old unsafe.Pointer, oldSize, align, newSize uint32) unsafe.Pointer {
	if newSize == 0 {
		// An address that Go takes for one.
		return unsafe.Pointer(&nothing)
	}
	memory := make([]uint64, (newSize+7)/8)
	held = append(held, memory)
	to := unsafe.Pointer(unsafe.SliceData(memory))
	copy(unsafe.Slice((*byte)(to), newSize), unsafe.Slice((*byte)(old), oldSize))
	return to
}

//go:wasmexport cabi_post_describe
func describeIsDone(unsafe.Pointer) { held = nil }

//go:wasmexport cabi_post_init
func initIsDone(unsafe.Pointer) { held = nil }

//go:wasmexport cabi_post_process
func processIsDone(unsafe.Pointer) { held = nil }

func of[T any](slice []T) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.SliceData(slice)), uint32(len(slice))
}

func text(text string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))
}

func at[T any](address, length uint32) []T {
	if length == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(uintptr(address))), length)
}

// Where the host puts what a call returns, in words of 32 bits.
var returned [8]uint32

func resultArea() unsafe.Pointer { return unsafe.Pointer(&returned) }

// Cases are numbered by bytes; what lies behind these in their words is whatever was there before.
func caseAt(word int) uint8 { return uint8(returned[word]) }

// result<_, error>, or that of a result whose value is elsewhere.
func refused() error {
	if caseAt(0) == 0 {
		return nil
	}
	return hostError{caseAt(1), string(at[byte](returned[2], returned[3]))}
}

// ---- What a function calls ----

func hostGetMany(isOwn bool, table string, keys *column, consistency Consistency) (column, []byte, error) {
	name, nameLength := text(table)
	bytes, bytesLength := of(keys.bytes)
	ends, length := of(keys.ends)
	if isOwn {
		stateGetMany(name, nameLength, bytes, bytesLength, ends, length, resultArea())
	} else {
		tablesGetMany(name, nameLength, bytes, bytesLength, ends, length, consistency.kind, consistency.argument, 0, resultArea())
	}
	if err := refused(); err != nil {
		return column{}, nil, err
	}
	return column{at[byte](returned[1], returned[2]), at[uint32](returned[3], returned[4])}, at[byte](returned[5], returned[6]), nil
}

func hostPutMany(table string, keys, values *column, records []uint32) error {
	name, nameLength := text(table)
	keyBytes, keyBytesLength := of(keys.bytes)
	keyEnds, keyEndsLength := of(keys.ends)
	valueBytes, valueBytesLength := of(values.bytes)
	valueEnds, valueEndsLength := of(values.ends)
	by, byLength := of(records)
	statePutMany(name, nameLength, keyBytes, keyBytesLength, keyEnds, keyEndsLength, valueBytes, valueBytesLength, valueEnds, valueEndsLength, by, byLength, resultArea())
	return refused()
}

func hostDeleteMany(table string, keys *column, records []uint32) error {
	name, nameLength := text(table)
	bytes, bytesLength := of(keys.bytes)
	ends, length := of(keys.ends)
	by, byLength := of(records)
	stateDeleteMany(name, nameLength, bytes, bytesLength, ends, length, by, byLength, resultArea())
	return refused()
}

func hostLeave(leaving *leaving) error {
	name, nameLength := text(leaving.name)
	keyBytes, keyBytesLength := of(leaving.keys.bytes)
	keyEnds, keyEndsLength := of(leaving.keys.ends)
	valueBytes, valueBytesLength := of(leaving.values.bytes)
	valueEnds, valueEndsLength := of(leaving.values.ends)
	times, timesLength := of(leaving.times)
	by, byLength := of(leaving.records)
	call := outputEmit
	if leaving.isSent {
		call = tablesSend
	}
	call(name, nameLength, keyBytes, keyBytesLength, keyEnds, keyEndsLength, valueBytes, valueBytesLength, valueEnds, valueEndsLength, times, timesLength, by, byLength, resultArea())
	return refused()
}

// Words of 32 bits that the host reads, with what they point to.
type words []uint32

func (w *words) pointer(pointer unsafe.Pointer, length uint32) {
	held = append(held, pointer)
	*w = append(*w, uint32(uintptr(pointer)), length)
}

func (w *words) column(column *column) {
	w.pointer(of(column.bytes))
	w.pointer(of(column.ends))
}

func hostUpdateMany(updates *updates) error {
	// update-many has more parameters than can be given one by one: this is their record.
	var parameters words
	parameters.pointer(text(updates.table))
	parameters.column(&updates.keys)
	parameters = append(parameters, uint32(updates.change), 0, 0)
	parameters.column(&updates.values)
	parameters.pointer(of(updates.records))
	// No outcomes.
	parameters = append(parameters, make([]uint32, 11)...)
	tablesUpdateMany(unsafe.Pointer(unsafe.SliceData(parameters)), resultArea())
	return refused()
}

func hostFigures(figures *figures) {
	name, nameLength := text(figures.name)
	values, valuesLength := of(figures.values)
	by, byLength := of(figures.records)
	if figures.isGauge {
		metricsGaugeMany(name, nameLength, values, valuesLength, by, byLength)
	} else {
		metricsCountMany(name, nameLength, values, valuesLength, by, byLength)
	}
}

func hostLog(level int32, line string) {
	at, length := text(line)
	logWrite(level, at, length)
}

func hostReject(record uint32, reason string) {
	at, length := text(reason)
	culpritReject(record, at, length)
}

// ---- What the host calls ----

// The instance's function, once it is made.
var function Function

func answer(value words) unsafe.Pointer {
	held = append(held, value)
	return unsafe.Pointer(unsafe.SliceData(value))
}

// result<_, string>
func answerOf(err error) unsafe.Pointer {
	if err == nil {
		return answer(words{0, 0, 0})
	}
	value := words{1}
	value.pointer(text(clean(err.Error())))
	return answer(value)
}

//go:wasmexport describe
func describe() unsafe.Pointer {
	var tables, ports, value words
	for _, table := range described.Tables {
		name, schemaVersion, isOpen, isOrdered := table.describe()
		tables.pointer(text(name))
		tables = append(tables, schemaVersion)
		if isOpen {
			declareOpenTable(text(name))
		}
		if isOrdered {
			declareOrderedTable(text(name))
		}
	}
	for _, port := range described.Ports {
		ports.pointer(text(port))
	}
	for _, table := range described.Uses {
		declareUsesTable(text(table.used()))
	}
	value.pointer(text(described.Name))
	value.pointer(text(described.Version))
	value.pointer(unsafe.Pointer(unsafe.SliceData(tables)), uint32(len(described.Tables)))
	value.pointer(unsafe.Pointer(unsafe.SliceData(ports)), uint32(len(described.Ports)))
	return answer(value)
}

//go:wasmexport init
func makeInstance(config unsafe.Pointer, length uint32) unsafe.Pointer {
	made, err := newFunction(append([]byte(nil), unsafe.Slice((*byte)(config), length)...))
	function = made
	return answerOf(err)
}

//go:wasmexport process
func processBatch(keys unsafe.Pointer, keysLength uint32, keyEnds unsafe.Pointer, keyEndsLength uint32, values unsafe.Pointer, valuesLength uint32, valueEnds unsafe.Pointer,
	valueEndsLength uint32, times unsafe.Pointer, timesLength uint32) unsafe.Pointer {
	batch := &batch{
		keys:   column{unsafe.Slice((*byte)(keys), keysLength), unsafe.Slice((*uint32)(keyEnds), keyEndsLength)},
		values: column{unsafe.Slice((*byte)(values), valuesLength), unsafe.Slice((*uint32)(valueEnds), valueEndsLength)},
		times:  unsafe.Slice((*int64)(times), timesLength),
	}
	return answerOf(batch.work(function))
}
