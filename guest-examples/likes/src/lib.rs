//! People who like each other come to like the same things: "A likes B" moves A's preferences towards B's, and B's towards A's.
//!
//! A person's preferences belong to the task that owns the person. A's are at hand, since the record is A's; B's are looked up, and changed by an
//! `add`, wherever B is. What one gains the other loses, in whole numbers: so the sum of everybody's preferences never changes, however the likes interleave.
#![warn(missing_docs)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table, Update, UsedTable, Wants};

/// What there is to like.
pub const SUBJECTS: usize = 4;

/// How much a person likes each subject, in millionths.
pub type Preferences = [i64; SUBJECTS];

/// Everybody's preferences.
pub const PREFERENCES: Table<Fixed<Preferences>> = Table::new("preferences");
/// The same table, for people whom other tasks own.
pub const OTHERS: UsedTable<Fixed<Preferences>> = UsedTable::new("others");

/// The operator's `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    /// The part of the way to each other that a like takes both: 1 in so many.
    one_in: i64,
    /// The most that it takes them. Many may like one person at once, and none of them knows of the others: without a limit they would
    /// drag this person past them all.
    step_max: i64,
}

/// What happens, always to `person`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Event<'a> {
    /// The person comes with these preferences.
    Joins { joins: Preferences },
    /// The person likes another one.
    Likes {
        #[serde(borrow)]
        likes: Cow<'a, str>,
    },
}

/// A line of output: how far apart two people were before the one liked the other.
#[derive(Debug, Serialize)]
struct Line<'a> {
    person: &'a str,
    likes: &'a str,
    apart: u64,
}

/// Keeps people's preferences; its input is keyed by person.
#[derive(Debug)]
pub struct Likes {
    settings: Settings,
}

impl Function for Likes {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&PREFERENCES).uses(&OTHERS)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let settings: Settings = config.parse()?;
        match settings.one_in > 0 && settings.step_max > 0 {
            true => Ok(Self { settings }),
            false => Err("`one-in` and `step-max` must be more than 0".to_owned()),
        }
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        if let Ok(Event::Likes { likes }) = record.json() {
            wants.lookup(&OTHERS, &*likes);
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        match record.json()? {
            Event::Joins { joins } => {
                // Whoever was liked before joining has been moved already: this comes on top.
                let mut preferences = context.state(&PREFERENCES)?;
                add(preferences.or_default(), &joins)
            }
            Event::Likes { likes } => self.like(record, &likes, context),
        }
    }
}

impl Likes {
    fn like(&self, record: Record<'_>, other: &str, context: &mut Context) -> Result<(), Reject> {
        // Of someone who has not joined yet nothing is known: neither this way nor that.
        let theirs = context.lookup(&OTHERS, other)?.unwrap_or_default();
        let mut preferences = context.state(&PREFERENCES)?;
        let own = preferences.or_default();
        let apart = std::iter::zip(&*own, &theirs).map(|(own, theirs)| own.abs_diff(*theirs)).sum();
        let gain = self.way(own, &theirs);
        add(own, &gain)?;
        context.update(&OTHERS, other, Update::add(&gain.map(|gain| -gain)))?;
        context.emit_json(record.key(), &Line { person: record.key_text()?, likes: other, apart })
    }

    /// How far a like takes `own` towards `theirs`.
    fn way(&self, own: &Preferences, theirs: &Preferences) -> Preferences {
        let Settings { one_in, step_max } = self.settings;
        std::array::from_fn(|subject| {
            (theirs[subject].saturating_sub(own[subject]) / one_in).clamp(-step_max, step_max)
        })
    }
}

fn add(preferences: &mut Preferences, gain: &Preferences) -> Result<(), Reject> {
    for (preference, gain) in std::iter::zip(preferences, gain) {
        *preference = preference.checked_add(*gain).ok_or_else(|| Reject::new("a preference passes 64 bits"))?;
    }
    Ok(())
}

wasmill_sdk::export!(Likes);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Change, Harness, Values, record};

    fn harness() -> Harness<Likes> {
        Harness::new(r#"{"one-in": 4, "step-max": 100}"#)
    }

    #[test]
    fn two_people_come_closer_and_nothing_is_gained_or_lost() {
        let mut harness = harness();
        harness.other(&OTHERS).put("bob", &[40, -8, 3, 1_000_000]);
        let outcome = harness.process([
            record("ann", r#"{"person":"ann","joins":[0,0,0,0]}"#),
            record("ann", r#"{"person":"ann","likes":"bob"}"#),
        ]);
        assert_eq!(outcome.texts(), [r#"{"person":"ann","likes":"bob","apart":1000051}"#]);
        assert_eq!(harness.state(&PREFERENCES, "ann"), Some([10, -2, 0, 100]));
        let updated = &outcome.updates[0];
        assert_eq!(
            (&*updated.key, &updated.change),
            (b"bob".as_slice(), &Change::Add(Values::from([-10, 2, 0, -100])))
        );
    }

    #[test]
    fn each_like_of_a_batch_goes_on_from_where_the_one_before_has_led() {
        let mut harness = harness();
        harness.other(&OTHERS).put("bob", &[400, 0, 0, 0]).put("cid", &[0, 0, 0, 0]);
        let likes = |other: &str| record("ann", format!(r#"{{"likes":"{other}"}}"#));
        let outcome = harness.process([likes("bob"), likes("cid"), likes("bob")]);
        assert_eq!(harness.state(&PREFERENCES, "ann"), Some([156, 0, 0, 0]));
        assert_eq!(outcome.updates.len(), 3);
        assert_eq!(harness.calls().look_up_many, 1);
    }

    #[test]
    fn whoever_is_liked_before_joining_counts_as_indifferent() {
        let mut harness = harness();
        let joins = record("ann", r#"{"joins":[80,0,-80,0]}"#);
        let outcome = harness.process([joins, record("ann", r#"{"likes":"bob"}"#)]);
        assert_eq!(harness.state(&PREFERENCES, "ann"), Some([60, 0, -60, 0]));
        assert_eq!(outcome.updates[0].change, Change::Add(Values::from([20, 0, -20, 0])));
    }
}
