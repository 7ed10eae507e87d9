//! CPU time and memory of another process, from /proc.

use std::fs;

/// Linux reports /proc times in hundredths of a second on every current architecture.
const US_PER_TICK: u64 = 10_000;

#[derive(Clone, Copy)]
pub struct CpuTime {
    /// User plus system time of all its threads, in steps of 10 ms.
    pub used_us: u64,
    /// Time in which its main thread was ready while another had its core.
    pub waited_us: u64,
}

impl CpuTime {
    pub fn of(pid: u32) -> Result<Self, String> {
        let stat = read(pid, "stat")?;
        let schedstat = read(pid, "schedstat")?;
        Ok(Self {
            used_us: ticks(&stat).ok_or_else(|| format!("{stat:?} has no times"))? * US_PER_TICK,
            waited_us: wait_ns(&schedstat).ok_or_else(|| format!("{schedstat:?} has no times"))? / 1000,
        })
    }
}

/// Memory of the process in RAM, by the kernel's exact count, not its estimate.
pub fn resident_bytes(pid: u32) -> Result<u64, String> {
    let rollup = read(pid, "smaps_rollup")?;
    rss_kib(&rollup)
        .map(|kib| kib << 10)
        .ok_or_else(|| format!("{rollup:?} has no Rss"))
}

fn rss_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn read(pid: u32, name: &str) -> Result<String, String> {
    let path = format!("/proc/{pid}/{name}");
    fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
}

/// Time on the run queue: the second of `running waiting slices`.
fn wait_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// utime + stime, fields 14 and 15. The command in field 2 may contain blanks and brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_command) = stat.rsplit_once(')')?;
    let mut fields = after_command.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_an_odd_command() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 700 80 0 0 20 0 1 0 5";
        assert_eq!(ticks(stat), Some(780));
        assert_eq!(ticks("42 (short) S 1"), None);
    }

    #[test]
    fn waiting_is_the_second_number() {
        assert_eq!(wait_ns("80 700 3\n"), Some(700));
        assert_eq!(wait_ns("80"), None);
    }

    #[test]
    fn own_process_has_times() {
        assert!(CpuTime::of(std::process::id()).is_ok());
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn memory_is_read_in_kib() {
        assert_eq!(rss_kib("5-7 ---p 0 [rollup]\nRss:      512 kB\nPss: 3 kB\n"), Some(512));
        assert_eq!(rss_kib("Pss: 3 kB\n"), None);
    }
}
