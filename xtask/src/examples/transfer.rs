//! `transfer`: what there is in all stays the same; and since the refused transfers are known, so is every balance, to the cent.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::ensure;
use serde_json::{Value, json};

use super::dice::Dice;
use super::{Example, Inputs, Ran, number, numbers, text, write_lines};

const ACCOUNTS: u64 = 10_000;
const TRANSFERS: u64 = 1_000_000;
const OPENING_CENTS: u64 = 2_000;
const CENTS_MAX: u64 = 500;

pub const EXAMPLE: Example =
    Example { name: "transfer", manifests: &["job.toml", "serializable.toml"], make_input: Some(make_input), check };

fn make_input(folder: &Path) -> anyhow::Result<Inputs> {
    let mut dice = Dice(3);
    let opens = |account: u64| json!({ "account": format!("a{account}"), "opens": OPENING_CENTS });
    let pays = |_| {
        let (payer, payee) = dice.roll_two(ACCOUNTS);
        json!({ "account": format!("a{payer}"), "pays": format!("a{payee}"), "cents": 1 + dice.roll(CENTS_MAX) })
    };
    let events = (0..ACCOUNTS).map(opens).chain((0..TRANSFERS).map(pays));
    Ok(vec![("events", write_lines(folder, "events.jsonl", events)?)])
}

fn check(ran: &Ran<'_>) -> anyhow::Result<String> {
    let (mut expected, mut transfers) = (BTreeMap::<String, i64>::new(), 0);
    for event in ran.input("events")? {
        let (account, payment) = (text(&event, "account")?, event["pays"].as_str());
        match payment {
            None => add(&mut expected, account, number(&event, "opens")?),
            Some(_) => pay(&mut expected, &event, 1)?,
        }
        transfers += i64::from(payment.is_some());
    }
    let refused = ran.output("refused")?;
    for transfer in &refused {
        pay(&mut expected, transfer, -1)?;
    }
    let balance = |(account, value): (&String, &Value)| Ok((account.clone(), numbers(value)?.iter().sum::<i64>()));
    let balances = ran.state("transfer")?.iter().map(balance).collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    for (account, cents) in &expected {
        ensure!(
            balances.get(account) == Some(cents),
            "{account} has {:?} and should have {cents}",
            balances.get(account)
        );
    }
    let (total, opened) = (balances.values().sum::<i64>(), (ACCOUNTS * OPENING_CENTS) as i64);
    ensure!(balances.len() == expected.len() && total == opened, "there were {opened} cents in all and are {total}");
    let least = balances.values().min().copied().unwrap_or_default();
    let is_serializable = ran.manifest == "serializable.toml";
    ensure!(!is_serializable || least >= 0, "an account has {least} cents");
    ensure!(is_serializable != refused.is_empty(), "{} transfers were refused", refused.len());
    Ok(format!(
        "after {transfers} transfers, {} of them refused, there are {total} cents as before, each where a plain computation has it; the least balance is {least}",
        refused.len()
    ))
}

fn pay(balances: &mut BTreeMap<String, i64>, transfer: &Value, times: i64) -> anyhow::Result<()> {
    let cents = times * number(transfer, "cents")?;
    add(balances, text(transfer, "account")?, -cents);
    add(balances, text(transfer, "pays")?, cents);
    Ok(())
}

fn add(balances: &mut BTreeMap<String, i64>, account: &str, cents: i64) {
    match balances.get_mut(account) {
        Some(balance) => *balance += cents,
        None => _ = balances.insert(account.to_owned(), cents),
    }
}
