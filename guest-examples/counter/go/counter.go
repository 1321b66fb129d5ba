// For each page, how often it has been seen so far.
package main

import "wasmill"

var counts = wasmill.NewTable[int64]("seen")

// Seen is what is written to the sink.
type Seen struct {
	Page string `json:"page"`
	Seen int64  `json:"seen"`
}

type counter struct{}

func (counter) Process(record wasmill.Record, context *wasmill.Context) error {
	seen, _, err := counts.Get(context, record.Key)
	if err != nil {
		return err
	}
	seen++
	if err := counts.Put(context, record.Key, seen); err != nil {
		return err
	}
	return context.EmitJSON(record.Key, Seen{string(record.Key), seen})
}

func init() {
	description := wasmill.Description{Name: "counter", Version: "0.1.0", Tables: []wasmill.Described{counts}}
	wasmill.Export(description, func([]byte) (wasmill.Function, error) { return counter{}, nil })
}

// Never run: a function is called by its host.
func main() {}
