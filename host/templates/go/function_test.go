package main

import (
	"testing"

	"wasmill"
)

func TestVisitsAreCountedByUserAndTheSlowestIsKept(t *testing.T) {
	harness, err := wasmill.NewHarness("{}")
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := harness.Process(
		wasmill.TestRecord("ada", `{"page": "/", "milliseconds": 30}`),
		wasmill.TestRecord("bo", `{"page": "/help", "milliseconds": 5}`),
		wasmill.TestRecord("ada", `{"page": "/help", "milliseconds": 20}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	expected := `{"user":"ada","count":2,"slowest_page":"/","slowest_milliseconds":30}`
	if found := outcome.Texts()[2]; found != expected {
		t.Errorf("found %s, expected %s", found, expected)
	}
}
