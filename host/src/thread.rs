//! How the threads of a host share its cores with each other.
//!
//! Some compute for as long as they have work; others answer: a reader, another host, a function that waits. An answer takes microseconds, and waits
//! milliseconds for its turn where all cores compute. What is asked of the system here needs no privilege, and where it is refused or not known, all share alike.

/// Lowers the priority of this thread, for work that nobody waits for.
pub fn yield_to_others() {
    const NICENESS: i32 = 5;
    let _ = rustix::process::nice(NICENESS);
}

/// Asks for short turns that come soon, for a thread that answers. Linux grants it from 6.12 on: a thread whose turns are short is let in before one whose turn is
/// long has ended. It gets no greater share of the cores by it.
pub fn answer_soon() {
    #[cfg(target_os = "linux")]
    linux::take_short_turns();
}

#[cfg(target_os = "linux")]
mod linux {
    /// The shortest that Linux grants.
    const TURN_NS: u64 = 100_000;

    const THIS_THREAD: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;

    pub(super) fn take_short_turns() {
        // A thread of another policy, which somebody has chosen for the process, stays as it is.
        let Some(mut attributes) = attributes().filter(|known| known.sched_policy == libc::SCHED_OTHER as u32) else {
            return;
        };
        attributes.sched_runtime = TURN_NS;
        // SAFETY: the system reads the structure, whose first field says how large it is.
        unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
    }

    /// How this thread is scheduled.
    fn attributes() -> Option<libc::sched_attr> {
        let size = size_of::<libc::sched_attr>() as libc::c_uint;
        // SAFETY: all of the structure's fields are integers, for which zero is a value.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the system writes at most `size` bytes into the structure, which is as large and lives on.
        let told = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) };
        (told == 0).then_some(attributes)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// The first Linux that lets a thread choose its turns.
        const SINCE: (u32, u32) = (6, 12);

        fn version() -> (u32, u32) {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
            (numbers.next().unwrap(), numbers.next().unwrap())
        }

        #[test]
        fn turns_are_short_where_the_system_grants_it_and_nothing_else_changes() {
            let before = attributes().unwrap();
            take_short_turns();
            let after = attributes().unwrap();
            let rest = |known: libc::sched_attr| (known.sched_policy, known.sched_nice, known.sched_priority);
            assert_eq!(rest(after), rest(before));
            if version() >= SINCE {
                assert_eq!(after.sched_runtime, TURN_NS);
            }
        }
    }
}
