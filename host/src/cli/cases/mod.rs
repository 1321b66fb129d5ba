//! `wasmill test fn.wasm cases.toml`: a component, in whatever language, does on given records and tables what its author expects.
//!
//! Each case is worked on twice, by instances of the component as a job makes them: all of its records in one call, and one call for each record. A job gathers records as they come, so both must come to the
//! same. `file` is the form of the cases, `tables` what a function finds, `outcome` what it has done and how that differs from what is expected.

mod file;
mod outcome;
mod tables;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use indicatif::MultiProgress;
use serde_json::json;

use self::file::{Case, Cases};
use self::outcome::{Difference, Outcome};
use self::tables::{Others, Own};
use super::log::{self, LogFormat};
use super::{Failure, failed, print};
use crate::job::limits;
use crate::manifest::Limits;
use crate::plugin::callable::{Callable as _, Surroundings};
use crate::plugin::engine::{Engine, Function};
use crate::plugin::{BatchLog, Records, Use, Waiting};
use crate::record::Batch;

/// Arguments of `wasmill test`.
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// The component.
    component: PathBuf,
    /// The cases, as TOML.
    cases: PathBuf,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &TestArgs) -> Result<(), Failure> {
    log::start(LogFormat::Text, &MultiProgress::new());
    let file = arguments.cases.display();
    let text = std::fs::read_to_string(&arguments.cases)
        .map_err(|error| Failure::usage(format!("cannot read `{file}`: {error}")))?;
    let cases = Cases::of(&text).map_err(|error| Failure::usage(format!("`{file}`: {error}")))?;
    let engine = Engine::new().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let function = runtime.block_on(engine.load(&arguments.component)).map_err(Failure::usage)?;
    let is_asked = |case: &&Case| arguments.only.as_ref().is_none_or(|only| case.name.contains(only));
    let asked: Vec<&Case> = cases.cases.iter().filter(is_asked).collect();
    if asked.is_empty() {
        return Err(Failure::usage(format!("`{file}` has no such case; it has {}", cases.names())));
    }
    let mut results = Vec::new();
    for case in asked {
        let differences = runtime.block_on(try_case(&function, &cases, case));
        results.push((case.name.as_str(), differences.map_err(|why| Failure::usage(format!("`{file}`: {why}")))?));
    }
    print(&if arguments.json { as_json(&results) } else { as_text(&results) })?;
    let is_right = results.iter().all(|(_, differences)| differences.is_empty());
    if is_right { Ok(()) } else { Err(Failure::Told(1)) }
}

/// How what a function does differs from what a case expects.
///
/// # Errors
/// When the case does not fit the function.
async fn try_case(function: &Function, cases: &Cases, case: &Case) -> Result<Vec<Difference>, String> {
    case.check(&function.description).map_err(|why| format!("case `{}`: {why}", case.name))?;
    let together = outcome(function, cases, case, case.records.len()).await;
    let differences = together.differences(&case.expect);
    if !differences.is_empty() || together.failure.is_some() || case.records.len() < 2 {
        return Ok(differences);
    }
    let apart = outcome(function, cases, case, 1).await.differences(&case.expect);
    let told = |difference: Difference| Difference {
        what: format!("with a call for each record, as a job may make them: {}", difference.what),
        ..difference
    };
    Ok(apart.into_iter().map(told).collect())
}

/// What a function does in calls of at most `size` records.
async fn outcome(function: &Function, cases: &Cases, case: &Case, size: usize) -> Outcome {
    let description = &function.description;
    let own = Arc::new(Own::new(description, &case.state));
    let others = Arc::new(Others::new(description, &case.others));
    let used = |name: &String| Use {
        name: name.clone(),
        read: true,
        update: true,
        send: true,
        ordered: true,
        versioned: cases.versioned.contains(name),
        waiting: Waiting::Allowed,
    };
    let config = case.config.as_ref().unwrap_or(&cases.config);
    let surroundings = Surroundings {
        operator: &case.name,
        limits: limits(&Limits::default()),
        state: Arc::clone(&own) as _,
        others,
        uses: description.uses.iter().map(used).collect(),
        config: &file::json_of_table(config).to_string(),
    };
    let mut outcome = Outcome::default();
    let mut instance = match function.instance(surroundings).await {
        Ok(instance) => instance,
        Err(error) => {
            outcome.failure = Some(error.to_string());
            return outcome;
        }
    };
    for (number, records) in case.records.chunks(size.max(1)).enumerate() {
        let mut batch = Batch::default();
        for record in records {
            batch.push(&record.key.bytes(), &record.value.bytes(), record.time);
        }
        match instance.process(batch, Records::Together, &mut BatchLog::default()).await.1 {
            Ok(effects) => outcome.take(description, &own, number * size, effects),
            Err(failure) => {
                outcome.failure = Some(failure.message);
                break;
            }
        }
    }
    outcome.note_state(description, &own);
    outcome
}

fn as_text(results: &[(&str, Vec<Difference>)]) -> String {
    let mut text = String::new();
    for (name, differences) in results {
        text += &format!("{} {name}\n", if differences.is_empty() { "ok  " } else { "FAIL" });
        for Difference { what, expected, found } in differences {
            text += &format!("  {what}\n    expected  {expected}\n    found     {found}\n");
        }
    }
    let failures = results.iter().filter(|(_, differences)| !differences.is_empty()).count();
    let count = match results.len() {
        1 => "1 case".to_owned(),
        count => format!("{count} cases"),
    };
    text + &format!("{count}, {}\n", if failures == 0 { "all right".to_owned() } else { format!("{failures} wrong") })
}

fn as_json(results: &[(&str, Vec<Difference>)]) -> String {
    let one = |(name, differences): &(&str, Vec<Difference>)| json!({ "case": name, "passed": differences.is_empty(), "differences": differences });
    format!("{:#}\n", results.iter().map(one).collect::<serde_json::Value>())
}
