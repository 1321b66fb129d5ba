//! What stored state bears of a job that comes back changed.

use super::*;

fn identity(edits: &[(&str, &str)], tables: &[(&str, u32)]) -> StateIdentity {
    StateIdentity::new(&graph(&edited(edits)), &declared(&[("stats", tables, &[])]))
}

/// What is said when a job that kept `counts` at version 2 comes back after `edits` with `tables`.
fn check_restart(edits: &[(&str, &str)], tables: &[(&str, u32)], expected: &[&str]) {
    let said = identity(&[], &[("counts", 2)]).compare(&identity(edits, tables)).err().unwrap_or_default();
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn state_bears_additions() {
    check_restart(&[], &[("counts", 2)], &[]);
    check_restart(&[], &[("counts", 2), ("sums", 1)], &[]);
    let added =
        "[sources.more]\nkind = \"nexmark\"\nevents = 1\n[operators.more]\ncomponent = \"x\"\ninputs = [\"more\"]\n\
        [sinks.more]\nkind = \"files\"\npath = \"more\"\ninputs = [\"more\"]\n[sinks.out]"
            .replace("[sinks.more]", "[sinks.more-out]")
            .replace("[operators.more]", "[operators.copy]");
    check_restart(&[("[sinks.out]", &added)], &[("counts", 2)], &[]);
}

#[test]
fn state_bears_the_removal_of_what_has_none() {
    let text = [("[operators.parse]", "[operators.other]"), ("[\"parse\"]", "[\"other\"]")];
    check_restart(&text, &[("counts", 2)], &[]);
}

#[test]
fn changes_that_state_does_not_bear_are_named() {
    let tables = [("counts", 2)];
    check_restart(
        &[("\"job\"", "\"jib\"")],
        &tables,
        &["the state belongs to the job `job`, but this is the job `jib`"],
    );
    check_restart(&[("= 16", "= 32")], &tables, &["the state has 16 partitions, but the manifest says 32"]);
    check_restart(
        &[("[sources.bids]", "[sources.bits]"), ("\"bids\"]", "\"bits\"]")],
        &tables,
        &["was it renamed to `bits`?"],
    );
    check_restart(&[("[sinks.out]", "[sinks.new]")], &tables, &["the exactly-once sink `out`"]);
    let no_longer = ("path = \"out\"", "path = \"out\"\ndelivery = \"at-least-once\"");
    check_restart(&[no_longer], &tables, &["the exactly-once sink `out`"]);
    check_restart(&[], &[], &["has no table `counts` any more"]);
    check_restart(&[], &[("count", 2)], &["has no table `counts` any more"]);
    // Which schema versions a component reads is found out with the state at hand.
    check_restart(&[], &[("counts", 1)], &[]);
    check_restart(&[], &[("counts", 3)], &[]);
}

#[test]
fn a_renamed_operator_with_tables_is_recognised() {
    let renamed = edited(&[("[operators.stats]", "[operators.totals]"), ("[\"stats\"]", "[\"totals\"]")]);
    let now = StateIdentity::new(&graph(&renamed), &declared(&[("totals", &[("counts", 2)], &[])]));
    let said = identity(&[], &[("counts", 2)]).compare(&now).unwrap_err();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("the operator `stats`") && said[0].contains("was it renamed to `totals`?"), "{said:?}");
}

#[test]
fn a_table_that_keeps_earlier_values_is_stored_otherwise_than_one_that_does_not() {
    let plain = identity(&[], &[("counts", 2)]);
    let versioned = StateIdentity { versioned: ["stats/counts".to_owned()].into(), ..plain.clone() };
    let check = |stored: &StateIdentity, now: &StateIdentity, expected: &str| {
        let said = stored.compare(now).unwrap_err();
        assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
    };
    check(&versioned, &plain, "`counts` of the operator `stats` is stored with earlier values (`versioned`)");
    check(&plain, &versioned, "`counts` of the operator `stats` is stored without earlier values");
    let joined = plain.clone().joined_by([("stats/counts", 2, true)], [], []);
    check(&joined, &plain, "is stored with earlier values");
    assert_eq!(joined.compare(&versioned), Ok(()));
    let written = serde_json::to_value(&plain).unwrap();
    assert!(written.get("versioned").is_none(), "{written}");
    assert_eq!(serde_json::from_value::<StateIdentity>(written).unwrap(), plain);
}

#[test]
fn what_joined_later_is_missed_like_what_was_there_from_the_start() {
    let now = identity(&[], &[("counts", 2)]);
    let tables = [("stats/counts", 2, false), ("later/sums", 1, false)];
    let said = now.clone().joined_by(tables, ["bids", "late"], ["out", "more"]).compare(&now).unwrap_err();
    let expected = ["the operator `later`", "the source `late`", "the exactly-once sink `more`"];
    assert!(said.len() == 3 && said.iter().zip(expected).all(|(said, expected)| said.contains(expected)), "{said:?}");
    assert_eq!(now.clone().joined_by([("stats/counts", 2, false)], ["bids"], ["out"]).compare(&now), Ok(()));
}

#[test]
fn an_identity_is_stored_and_read_back() {
    let identity = identity(&[], &[("counts", 2)]);
    let text = serde_json::to_string(&identity).unwrap();
    assert_eq!(serde_json::from_str::<StateIdentity>(&text).unwrap(), identity);
}
