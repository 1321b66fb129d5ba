package wasmill

import (
	"errors"
	"reflect"
	"testing"
)

var (
	counts = NewTable[int]("counts")
	texts  = NewBytesTable("texts")
	names  = UseBytes("names")
)

// What a record's value asks for.
type obedient struct{}

func (obedient) Process(record Record, context *Context) error {
	count, _, err := counts.Get(context, record.Key)
	if err != nil {
		return err
	}
	if err := counts.Put(context, record.Key, count+1); err != nil {
		return err
	}
	context.Emit(record.Key, record.Value)
	context.Count("seen", 1)
	names.Add(context, record.Key, 1)
	switch string(record.Value) {
	case "refuse":
		return errors.New("told to")
	case "panic":
		panic("told to")
	case "delete":
		counts.Delete(context, record.Key)
	case "name":
		name, found, err := names.Lookup(context, record.Key)
		if err != nil || !found {
			return err
		}
		return texts.Put(context, record.Key, name)
	}
	return nil
}

func begun(t *testing.T) *Harness {
	t.Helper()
	Export(Description{Name: "obedient", Version: "1"}, func([]byte) (Function, error) { return obedient{}, nil })
	harness, err := NewHarness("{}")
	if err != nil {
		t.Fatal(err)
	}
	return harness
}

func TestARefusedRecordHasDoneNothing(t *testing.T) {
	harness := begun(t)
	outcome, err := harness.Process(TestRecord("a", "1"), TestRecord("a", "refuse"), TestRecord("b", "refuse"), TestRecord("a", "2"))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(outcome.Texts(), []string{"1", "2"}) || len(outcome.Updated) != 2 || outcome.Counts["seen"] != 2 {
		t.Errorf("effects of refused records: %+v", outcome)
	}
	if !reflect.DeepEqual(outcome.Rejected, map[uint32]string{1: "told to", 2: "told to"}) {
		t.Errorf("refused: %v", outcome.Rejected)
	}
	if value, _ := harness.State("counts", "a"); value != "2" {
		t.Errorf("the count of a is %q", value)
	}
	if _, found := harness.State("counts", "b"); found {
		t.Error("a refused record has left a count")
	}
}

func TestAPanicIsAnErrorOfTheWholeBatch(t *testing.T) {
	harness := begun(t)
	if _, err := harness.Process(TestRecord("a", "1"), TestRecord("a", "panic")); err == nil {
		t.Error("the batch went well")
	}
	if _, found := harness.State("counts", "a"); found {
		t.Error("a batch that failed has left a count")
	}
}

func TestStateIsDeletedAndOthersAreLookedUp(t *testing.T) {
	harness := begun(t)
	harness.Other("names", "a", "ada")
	for _, value := range []string{"1", "name", "delete"} {
		if _, err := harness.Process(TestRecord("a", value)); err != nil {
			t.Fatal(err)
		}
	}
	if _, found := harness.State("counts", "a"); found {
		t.Error("the count is still there")
	}
	if value, _ := harness.State("texts", "a"); value != "ada" {
		t.Errorf("the name is %q", value)
	}
}
