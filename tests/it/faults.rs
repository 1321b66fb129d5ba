//! Jobs on three hosts to whom everything happens that can: hosts are killed and stand still, links are slow, cut both ways or one way, and messages are lost, doubled and swapped. What is committed is
//! right at every moment, the end is that of a plain computation, and when the harm is over the job is under way again in a stated time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LOST_AFTER_MS, OVERDRAFT, check_total, spread, transfers};
use crate::harness::{Dice, Ended, Job, TIME_LIMIT, free_addresses, seed, soak_times};
use crate::relay::{Harm, Harms, Relay, Trick};
use crate::tables::{OPENING, balances, both_ways, check_found, head, sink};

const HOSTS: usize = 3;

/// When nothing is wrong any more, the next epoch is committed within this time: a host is lost at the latest after `lost-after`, the others look for it again at the latest after
/// two seconds, and an attempt begins. The rest is for a machine that has other things to do.
const UNDER_WAY_MAX: Duration = Duration::from_millis(LOST_AFTER_MS + 2_000 + 12_000);

/// Something that goes wrong for a while.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(usize),
    StandStill(usize),
    /// The connections to a host, in one direction or in both.
    Harm(usize, Harms),
    Reset(usize),
}

fn draw(dice: &mut Dice) -> Fault {
    let harm = |dice: &mut Dice, harm: Harm| {
        let mut harms = Harms::default();
        match dice.roll(3) {
            2 => harms = [harm; 2],
            direction => harms[direction as usize] = harm,
        }
        // Nobody connects to the last host.
        Fault::Harm(dice.roll(HOSTS as u64 - 1) as usize, harms)
    };
    match dice.roll(8) {
        0 | 1 => Fault::Kill(dice.roll(HOSTS as u64) as usize),
        2 => Fault::StandStill(dice.roll(HOSTS as u64) as usize),
        3 => Fault::Reset(dice.roll(HOSTS as u64 - 1) as usize),
        4 => {
            let delay = Duration::from_millis(1 + dice.roll(30));
            harm(dice, Harm { delay, ..Harm::default() })
        }
        5 => harm(dice, Harm { swallow: true, ..Harm::default() }),
        _ => {
            let trick = [Trick::Drop, Trick::Double, Trick::Swap][dice.roll(3) as usize];
            harm(dice, Harm { next: Some(trick), ..Harm::default() })
        }
    }
}

/// Hosts with a relay in front of each.
struct Harmed {
    cluster: Cluster,
    relays: Vec<Relay>,
}

impl Harmed {
    fn new(job: Job) -> Self {
        let listens = free_addresses(HOSTS);
        let relays: Vec<Relay> = listens.iter().map(|&listen| Relay::start(listen)).collect();
        let addresses: Vec<SocketAddr> = relays.iter().map(Relay::address).collect();
        Self { cluster: Cluster::reached_at(job, &addresses, &listens), relays }
    }

    /// Does harm for a while, and undoes it.
    fn suffer(&mut self, fault: Fault, time: Duration, look: &mut impl FnMut(&Cluster)) {
        let name = |host: usize| self.cluster.hosts[host].clone();
        match fault {
            Fault::Kill(host) => {
                let host = name(host);
                self.cluster.kill(&host);
                self.look_for(time / 4, look);
                self.cluster.start(&host);
            }
            Fault::StandStill(host) => {
                let host = name(host);
                self.cluster.signal(&host, Signal::STOP);
                // Whoever asks it would stand still with it.
                std::thread::sleep(time);
                self.cluster.signal(&host, Signal::CONT);
            }
            Fault::Harm(host, harms) => {
                self.relays[host].set(harms);
                self.look_for(time, look);
                self.relays[host].set(Harms::default());
            }
            Fault::Reset(host) => self.relays[host].reset(),
        }
    }

    fn look_for(&mut self, time: Duration, look: &mut impl FnMut(&Cluster)) {
        let end = Instant::now() + time;
        while Instant::now() < end && self.cluster.is_running() {
            look(&self.cluster);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until an epoch is committed, or the job has ended.
    #[track_caller]
    fn wait_until_under_way(&mut self, after: Fault, look: &mut impl FnMut(&Cluster)) {
        let (start, mut first) = (Instant::now(), None);
        while self.cluster.is_running() {
            let newest = self.cluster.newest_epoch();
            first = first.or(newest);
            if newest > first {
                return;
            }
            if start.elapsed() > UNDER_WAY_MAX {
                let status: Vec<_> = self.cluster.hosts.iter().map(|host| self.cluster.status(host)).collect();
                panic!("{UNDER_WAY_MAX:?} after {after:?} nothing is committed: {status:#?}");
            }
            look(&self.cluster);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs the job to its end, through at most `faults` of all kinds.
    fn endure(mut self, faults: u64, mut look: impl FnMut(&Cluster)) -> Cluster {
        let mut dice = Dice(seed());
        self.cluster.start_all();
        let mut suffered = 0;
        while self.cluster.is_running() {
            if suffered < faults {
                let (fault, time) = (draw(&mut dice), Duration::from_millis(50 + dice.roll(2 * LOST_AFTER_MS)));
                println!("{suffered}: {fault:?} for {time:?}");
                self.suffer(fault, time, &mut look);
                self.wait_until_under_way(fault, &mut look);
                suffered += 1;
            } else {
                self.look_for(UNDER_WAY_MAX, &mut look);
            }
        }
        println!("{suffered} faults");
        assert!(suffered > 2, "the job was over after {suffered} faults");
        let Self { mut cluster, relays } = self;
        cluster.wait().into_iter().for_each(|ended: Ended| _ = ended.succeeded());
        drop(relays);
        cluster
    }
}

/// Too short a time for anybody to be taken for lost: only that something is missing can tell.
#[test]
fn what_a_link_swallows_for_a_moment_is_missed_and_sent_again() {
    let (job, events) = transfers(60_000, OPENING, 500, OVERDRAFT);
    let mut harmed = Harmed::new(job);
    harmed.cluster.start_all();
    let (moment, mut nobody) = (Duration::from_millis(LOST_AFTER_MS / 10), |_: &Cluster| {});
    let mut suffered = 0;
    for host in 0..HOSTS - 1 {
        for directions in [[true, false], [false, true], [true, true]] {
            let fault = Fault::Harm(host, directions.map(|swallow| Harm { swallow, ..Harm::default() }));
            harmed.wait_until_under_way(fault, &mut nobody);
            suffered += u32::from(harmed.cluster.is_running());
            harmed.suffer(fault, moment, &mut nobody);
        }
    }
    assert!(suffered > 2, "the job was over after {suffered} faults");
    harmed.cluster.wait().into_iter().for_each(|ended| _ = ended.succeeded());
    assert_eq!(harmed.cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn no_money_is_lost_or_made_whatever_goes_wrong_between_three_hosts() {
    let (job, events) = transfers(100_000 * soak_times(), OPENING, 500, OVERDRAFT);
    let mut looks = 0;
    let harmed = Harmed::new(job.time_limit(2 * TIME_LIMIT * soak_times() as u32));
    let cluster = harmed.endure(10 * soak_times(), |cluster| {
        if let Some(balances) = cluster.newest_epoch().and_then(|epoch| cluster.balances_as_of(epoch)) {
            check_total(&balances);
            looks += 1;
        }
    });
    println!("{looks} looks");
    assert!(looks > 0, "nobody has looked");
    assert_eq!(cluster.integers("transfer"), balances(&events, &[]));
}

#[test]
fn lookups_and_updates_both_ways_are_answered_and_applied_once_whatever_goes_wrong_between_three_hosts() {
    let count = 20_000 * soak_times();
    let (job, sums) = both_ways(count, "live", "batch = 64");
    let harmed = Harmed::new(job.time_limit(2 * TIME_LIMIT * soak_times() as u32));
    let cluster = harmed.endure(8 * soak_times(), |_| {});
    assert_eq!([cluster.integers("left"), cluster.integers("right")], sums);
    check_found(&cluster.output_lines("found"), count, &sums);
}

/// What everybody who joins likes is a multiple of this, so that a like of which only one half is there would be seen.
const UNIT: i64 = 1_000_003;

/// People who join, and then like each other, spread over files; and what they like of each subject when they join, all together.
fn likes(people: u64, count: u64) -> (Job, [i64; 4]) {
    let manifest = format!(
        "{}[sources.events]\nkind = \"file\"\npath = \"events\"\nformat = \"jsonl\"\nkey = \"/person\"\n\
         [operators.people]\ncomponent = \"{{guest:likes}}\"\ninputs = [\"events\"]\nconfig = {{ one-in = 4, step-max = 1000 }}\n\
         uses.others = {{ table = \"people.preferences\", read = true, update = true }}\n{}",
        head(1, "50ms", "").replace("[checkpoint]\n", "[checkpoint]\nretained = 12\n"),
        sink("likes", "\"people\"", "")
    );
    let mut dice = Dice(7);
    let mut sums = [0; 4];
    let mut join = |dice: &mut Dice| -> [i64; 4] {
        let joins = [0; 4].map(|_: i64| UNIT * dice.roll(100) as i64);
        std::iter::zip(&mut sums, joins).for_each(|(sum, like)| *sum += like);
        joins
    };
    let mut events: Vec<Value> =
        (0..people).map(|one| json!({ "person": format!("p{one}"), "joins": join(&mut dice) })).collect();
    events.extend((0..count).map(|_| {
        let (one, step) = (dice.roll(people), 1 + dice.roll(people - 1));
        json!({ "person": format!("p{one}"), "likes": format!("p{}", (one + step) % people) })
    }));
    (spread(Job::new(&manifest), &events), sums)
}

/// The sums of what people like, subject by subject.
fn sums<'a>(preferences: impl IntoIterator<Item = &'a Vec<u8>>) -> [i64; 4] {
    let mut sums = [0; 4];
    for preference in preferences {
        let (numbers, rest) = preference.as_chunks::<8>();
        assert_eq!((numbers.len(), rest), (4, &[][..]));
        std::iter::zip(&mut sums, numbers).for_each(|(sum, number)| *sum += i64::from_le_bytes(*number));
    }
    sums
}

#[test]
fn who_likes_whom_changes_both_or_neither_whatever_goes_wrong_between_three_hosts() {
    let count = 100_000 * soak_times();
    let (job, joined) = likes(500, count);
    let mut looks = 0;
    let harmed = Harmed::new(job.time_limit(2 * TIME_LIMIT * soak_times() as u32));
    let cluster = harmed.endure(6 * soak_times(), |cluster| {
        let preferences = cluster.newest_epoch().and_then(|epoch| cluster.values_as_of("people.preferences", epoch));
        if let Some(preferences) = preferences {
            let sums = sums(&preferences);
            assert!(sums.iter().all(|sum| sum % UNIT == 0), "half of a like is there: {sums:?}");
            looks += 1;
        }
    });
    assert!(looks > 0, "nobody has looked");
    assert_eq!(sums(cluster.values("people").values()), joined);
    assert_eq!(cluster.output_lines("likes").len() as u64, count);
}
