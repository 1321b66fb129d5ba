// What the functions of all languages do alike, by mode: see tests/it/languages.rs.
package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"wasmill"
)

var (
	counts = wasmill.NewBytesTable("counts")
	others = wasmill.UseBytes("others")
)

type behaviour struct {
	Mode string `json:"mode"`
}

func newBehaviour(config []byte) (wasmill.Function, error) {
	var made behaviour
	if err := json.Unmarshal(config, &made); err != nil || !slices.Contains([]string{"count", "join", "fail", "echo"}, made.Mode) {
		return nil, errors.New("the config has no mode of count, join, fail, echo")
	}
	return made, nil
}

func (b behaviour) Prefetch(record wasmill.Record, wants *wasmill.Wants) {
	if b.Mode == "join" {
		wants.Want(others, record.Key)
	}
}

func (b behaviour) Process(record wasmill.Record, context *wasmill.Context) error {
	switch b.Mode {
	case "count":
		return count(record, context)
	case "join":
		return join(record, context)
	case "fail":
		return fail(record, context)
	default:
		return echo(record, context)
	}
}

func count(record wasmill.Record, context *wasmill.Context) error {
	text, found, err := counts.Get(context, record.Key)
	if err != nil {
		return err
	}
	number := 0
	if found {
		if number, err = strconv.Atoi(string(text)); err != nil {
			return err
		}
	}
	text = strconv.AppendInt(nil, int64(number)+1, 10)
	context.Emit(record.Key, text)
	return counts.Put(context, record.Key, text)
}

func join(record wasmill.Record, context *wasmill.Context) error {
	value, found, err := others.Lookup(context, record.Key)
	if err != nil {
		return err
	}
	if !found {
		value = []byte("-")
	}
	context.Emit(record.Key, slices.Concat(record.Key, []byte("="), value))
	return nil
}

func fail(record wasmill.Record, context *wasmill.Context) error {
	switch string(record.Value) {
	case "reject":
		return errors.New("told to")
	case "trap":
		panic("told to trap")
	case "loop":
		context.AtFault()
		for {
		}
	}
	return echo(record, context)
}

func echo(record wasmill.Record, context *wasmill.Context) error {
	context.Emit(record.Key, record.Value)
	context.Count("echoed", 1)
	return nil
}

func init() {
	description := wasmill.Description{
		Name:    "behaviour",
		Version: "0.1.0",
		Tables:  []wasmill.Described{counts},
		Uses:    []wasmill.Used{others},
	}
	wasmill.Export(description, newBehaviour)
}

// Never run: a function is called by its host.
func main() {}
