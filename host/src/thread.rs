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

    pub(super) fn take_short_turns() {
        const THIS_THREAD: libc::pid_t = 0;
        const NO_FLAGS: libc::c_uint = 0;
        let size = size_of::<libc::sched_attr>() as libc::c_uint;
        // SAFETY: all of the structure's fields are integers, for which zero is a value.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the system writes at most `size` bytes into the structure, which is as large and lives on.
        let told = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) };
        // A thread of another policy, which somebody has chosen for the process, stays as it is.
        if told != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
            return;
        }
        attributes.sched_runtime = TURN_NS;
        // SAFETY: the system reads the structure, whose first field says how large it is.
        unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn asking_for_short_turns_changes_nothing_else() {
            let policy = || {
                // SAFETY: both only read.
                unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) }
            };
            let before = policy();
            super::take_short_turns();
            assert_eq!(policy(), before);
        }
    }
}
