//! What is said about tables that are opened and used, and where a plan finds them.

use super::*;

/// The edit by which `stats` uses a table.
fn using(written: &str) -> (&'static str, String) {
    ("component = \"stats.wasm\"", format!("uses.known = {{ {written} }}\ncomponent = \"stats.wasm\""))
}

#[test]
fn used_tables_are_resolved() {
    let case = |written: &str, expected: &[&str]| {
        let (from, to) = using(written);
        check_edits(&[(from, &to)], expected);
    };
    case("table = \"parse.seen\", read = true", &[]);
    case("table = \"stats.counts\", update = true, send = true", &[]);
    case("table = \"parse.seen\"", &["16:6 `known` is allowed nothing: it needs `read`, `update` or `send`"]);
    case("table = \"prase.seen\", read = true", &["16:24 unknown operator `prase`, did you mean `parse`?"]);
    case("table = \"bids.seen\", read = true", &["16:24 `bids` is a source and has no tables"]);
    case("table = \"seen\", read = true", &["16:24 `seen` names no table: a table is written `operator.table`"]);
    case("table = \"parse.\", read = true", &["16:24 a name must not be empty"]);
    case(
        "table = \"parse.a.b\", read = true",
        &["16:24 the name `a.b` has a '.'; names have letters, digits, `-` and `_`"],
    );
    check_edits(
        &[(
            "component = \"stats.wasm\"",
            "uses.\"a b\" = { table = \"parse.seen\", read = true }\ncomponent = \"stats.wasm\"",
        )],
        &["16:6 the name `a b` has a ' '; names have letters, digits, `-` and `_`"],
    );
    check_edits(
        &[("component = \"stats.wasm\"", "tables.\"a b\" = { open = true }\ncomponent = \"stats.wasm\"")],
        &["16:8 the name `a b` has a ' '; names have letters, digits, `-` and `_`"],
    );
}

#[test]
fn an_operator_may_live_by_what_others_do_to_its_tables() {
    let case = |allowed: &str, inputs: &str, expected: &[&str]| {
        let sections = format!(
            "[operators.keeper]\ncomponent = \"k\"\ninputs = {inputs}\n\
            [operators.stats]\nuses.known = {{ table = \"keeper.t\", {allowed} = true }}\n"
        );
        check_edits(&[("[operators.stats]\n", &sections)], expected);
    };
    case("update", "[]", &[]);
    case("send", "[]", &[]);
    case("read", "[\"bids\"]", &[]);
    case("read", "[]", &["17:10 the operator `keeper` has no inputs"]);
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// What is said when `stats` uses `parse.seen` and these further fields of `parse` are written, by components that say this of themselves.
fn check_tables(parse_fields: &str, parse: Declared, stats_uses: &[&str], expected: &[&str]) {
    let (from, to) = using("table = \"parse.seen\", read = true");
    let fields = format!("{parse_fields}component = \"parse.wasm\"");
    let text = edited(&[(from, &to), ("component = \"parse.wasm\"", &fields)]);
    let stats = Declared { uses: texts(stats_uses), ..Declared::default() };
    let declared = BTreeMap::from([("parse".to_owned(), parse), ("stats".to_owned(), stats)]);
    let findings = match Plan::new(&graph(&text), 2, &declared) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    assert_eq!(shown(&loaded(&text), findings), expected);
}

/// A component that keeps `seen` and another table.
fn keeping(open: &[&str], ordered: &[&str]) -> Declared {
    Declared {
        tables: vec![("other".to_owned(), 1), ("seen".to_owned(), 3)],
        open: texts(open),
        ordered: texts(ordered),
        ..Declared::default()
    }
}

const OPEN: &str = "tables.seen = { open = true }\n";

#[test]
fn a_table_is_opened_by_its_component_and_the_manifest() {
    check_tables(OPEN, keeping(&["seen"], &[]), &["known"], &[]);
    check_tables(
        OPEN,
        keeping(&[], &[]),
        &["known"],
        &[
            "12:17 the component of `parse` does not open its table `seen`",
            "17:24 the component of `parse` does not open its table `seen` to others",
        ],
    );
    check_tables("", keeping(&["seen"], &[]), &["known"], &["16:24 the table `seen` of `parse` is not open to others"]);
    check_tables(
        "tables.seen = { open = false }\n",
        keeping(&["seen"], &[]),
        &["known"],
        &["17:24 the table `seen` of `parse` is not open to others"],
    );
}

#[test]
fn tables_that_are_not_there_are_named() {
    let declared = Declared { tables: vec![("seem".to_owned(), 1)], ..Declared::default() };
    check_tables(
        "",
        declared.clone(),
        &["known"],
        &["16:24 the operator `parse` has no table `seen`, did you mean `seem`?"],
    );
    check_tables(
        "tables.sen = { ordered = true }\n",
        keeping(&["seen"], &[]),
        &["known"],
        &[
            "12:8 the operator `parse` has no table `sen`, did you mean `seen`?",
            "17:24 the table `seen` of `parse` is not open to others",
        ],
    );
}

#[test]
fn function_and_manifest_call_used_tables_the_same() {
    let open = || keeping(&["seen"], &[]);
    check_tables(OPEN, open(), &[], &["17:6 warning: the component of `stats` uses no table that it calls `known`"]);
    check_tables(
        OPEN,
        open(),
        &["knwon"],
        &[
            "17:6 warning: the component of `stats` uses no table that it calls `known`, did you mean `knwon`?",
            "18:13 the component uses a table that it calls `knwon`, but the manifest does not say which",
        ],
    );
    check_tables(
        OPEN,
        open(),
        &["known", "a b"],
        &["18:13 the component uses a table: the name `a b` has a ' '; names have letters, digits, `-` and `_`"],
    );
}

#[test]
fn a_plan_says_where_used_tables_are() {
    let plan = |parse_fields: &str, ordered: &[&str]| {
        let own = "uses.own = { table = \"parse.other\", update = true }\n";
        let (from, to) = using("table = \"parse.seen\", read = true, send = true");
        let fields = format!("{own}{parse_fields}component = \"parse.wasm\"");
        let text = edited(&[(from, &to), ("component = \"parse.wasm\"", &fields)]);
        let parse = Declared { uses: texts(&["own"]), ..keeping(&["seen"], ordered) };
        let stats = Declared { uses: texts(&["known"]), ..Declared::default() };
        let declared = BTreeMap::from([("parse".to_owned(), parse), ("stats".to_owned(), stats)]);
        Plan::new(&graph(&text), 2, &declared).unwrap().0
    };
    let closed = plan(OPEN, &[]);
    let known = PlannedUse {
        name: "known".to_owned(),
        owner: OperatorIndex(0),
        table: 1,
        read: true,
        update: false,
        send: true,
        ordered: false,
        versioned: false,
        // It sends to `parse`, so how far that has come depends on it.
        waiting: Waiting::Circular,
        gathering: Gathering { max_batch: 1024, linger: std::time::Duration::from_micros(100) },
    };
    assert_eq!(closed.operators[1].uses, std::slice::from_ref(&known));
    let own = PlannedUse { name: "own".to_owned(), table: 0, read: false, update: true, send: false, ..known.clone() };
    assert_eq!(closed.operators[0].uses, [own], "a table of its own needs nobody's leave");
    let table = |name: &str, schema_version, open, ordered| PlannedTable {
        name: name.to_owned(),
        schema_version,
        open,
        ordered,
        versioned_span_ms: None,
    };
    assert_eq!(closed.operators[0].tables, [table("other", 1, false, false), table("seen", 3, true, false)]);
    for ordered in [plan("tables.seen = { open = true, ordered = true }\n", &[]), plan(OPEN, &["seen"])] {
        assert_eq!(ordered.operators[1].uses, [PlannedUse { ordered: true, ..known.clone() }]);
        assert!(ordered.operators[0].tables[1].ordered);
    }
}

#[test]
fn an_operator_whose_tables_are_used_need_not_be_read() {
    let (from, to) = using("table = \"parse.seen\", read = true");
    check_edits(&[(from, &to), ("[\"parse\"]", "[\"bids\"]")], &[]);
}

#[test]
fn only_a_component_makes_its_table_versioned_and_the_manifest_may_set_the_span() {
    let spanned = "tables.seen = { open = true, versioned = \"1m\" }\n";
    check_tables(
        spanned,
        keeping(&["seen"], &[]),
        &["known"],
        &["12:30 the component of `parse` does not declare its table `seen` as versioned"],
    );
    let declared = || Declared { versioned: vec![("seen".to_owned(), 5)], ..keeping(&["seen"], &[]) };
    let span = |parse_fields: &str| {
        let (from, to) = using("table = \"parse.seen\", read = true");
        let fields = format!("{parse_fields}component = \"parse.wasm\"");
        let text = edited(&[(from, &to), ("component = \"parse.wasm\"", &fields)]);
        let stats = Declared { uses: texts(&["known"]), ..Declared::default() };
        let declared = BTreeMap::from([("parse".to_owned(), declared()), ("stats".to_owned(), stats)]);
        let plan = Plan::new(&graph(&text), 2, &declared).unwrap().0;
        let used = &plan.operators[1].uses[0];
        assert!(used.versioned && used.waiting == Waiting::Allowed);
        plan.operators[0].tables.iter().map(|table| table.versioned_span_ms).collect::<Vec<_>>()
    };
    assert_eq!(span(OPEN), [None, Some(5)]);
    assert_eq!(span(spanned), [None, Some(60_000)]);
}
