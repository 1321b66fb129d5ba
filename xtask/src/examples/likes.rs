//! `likes`: what one person gains the other loses, so the sum of all preferences is that of those who joined, to the last digit.

use std::path::Path;

use anyhow::ensure;
use serde_json::{Value, json};

use super::dice::Dice;
use super::{Example, Inputs, Ran, numbers, write_lines};

const PEOPLE: u64 = 2_000;
const LIKES: u64 = 200_000;
const SUBJECTS: usize = 4;
/// In a preference, the whole.
const MILLION: u64 = 1_000_000;

pub const EXAMPLE: Example = Example { name: "likes", manifests: &["job.toml"], make_input: Some(make_input), check };

fn make_input(folder: &Path) -> anyhow::Result<Inputs> {
    let mut dice = Dice(1);
    let join = |person: u64, dice: &mut Dice| {
        let joins: [u64; SUBJECTS] = std::array::from_fn(|_| dice.roll(MILLION + 1));
        json!({ "person": format!("p{person}"), "joins": joins })
    };
    let joins: Vec<Value> = (0..PEOPLE).map(|person| join(person, &mut dice)).collect();
    let like = |_| {
        // Some are liked far more often than others.
        let known = PEOPLE >> dice.roll(8);
        let (one, _) = dice.roll_two(PEOPLE);
        json!({ "person": format!("p{one}"), "likes": format!("p{}", dice.roll(known)) })
    };
    let likes: Vec<Value> = (0..LIKES).map(like).collect();
    Ok(vec![("events", write_lines(folder, "events.jsonl", joins.into_iter().chain(likes))?)])
}

fn check(ran: &Ran<'_>) -> anyhow::Result<String> {
    let joined = ran.input("events")?.iter().filter(|event| event["joins"].is_array()).map(joins).collect::<Vec<_>>();
    let state = ran.state("people")?;
    let now = state.values().map(numbers).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(now.len() == joined.len(), "{} people have joined, but {} are there", joined.len(), now.len());
    for subject in 0..SUBJECTS {
        let (before, after) = (sum(&joined, subject), sum(&now, subject));
        ensure!(before == after, "the preferences for subject {subject} were {before} in all and are {after}");
    }
    let likes = ran.output("likes")?.len();
    let (before, after) = (spread(&joined), spread(&now));
    ensure!(after < before, "people were {before} apart from the mean and are {after}");
    Ok(format!(
        "after {likes} likes the preferences of {} people have the sums that they had; from the mean they are {after} apart, and were {before}",
        now.len()
    ))
}

fn joins(event: &Value) -> Vec<i64> {
    event["joins"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
}

fn sum(people: &[Vec<i64>], subject: usize) -> i64 {
    people.iter().map(|preferences| preferences[subject]).sum()
}

/// How far from the mean a preference is, on average.
fn spread(people: &[Vec<i64>]) -> i64 {
    let count = people.len() as i64;
    let of_subject = |subject: usize| {
        let mean = sum(people, subject) / count;
        people.iter().map(|preferences| (preferences[subject] - mean).abs()).sum::<i64>()
    };
    (0..SUBJECTS).map(of_subject).sum::<i64>() / (count * SUBJECTS as i64)
}
