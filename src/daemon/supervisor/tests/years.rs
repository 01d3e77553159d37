//! Long spans of time, compared with the due times that the oracle finds.

use chrono_tz::Tz;
use proptest::prelude::*;

use std::collections::BTreeMap;

use super::oracle::due_times;
use super::*;
use crate::daemon::ticker::Ticker;
use crate::schedule::{Expression, Schedule};

/// Zones with changes of the clock by an hour and by half an hour, at midnight, around Ramadan, and
/// with an offset of 12:45.
const ZONES: [Tz; 6] = [
    Tz::Europe__Berlin,
    Tz::America__New_York,
    Tz::Australia__Lord_Howe,
    Tz::Africa__Casablanca,
    Tz::Africa__Cairo,
    Tz::Pacific__Chatham,
];

/// Returns 200 different expressions. Those with many due times are limited to a few days, some of
/// which change the clock.
fn expressions() -> Vec<String> {
    let times = [
        "0 0",
        "30 0",
        "0 1",
        "30 1",
        "0 2",
        "15 2",
        "30 2",
        "45 2",
        "0 3",
        "59 23",
        "0 12",
        "0,30 2",
        "*/20 1-3",
        "0 */6",
        "5 0-4/2",
        "10-20/5 2",
        "30 22-23",
        "0 1,2,3",
    ];
    let days = [
        "* * *",
        "* * SUN",
        "1 * *",
        "31 * *",
        "29 2 *",
        "15 * MON",
        "* * MON-FRI",
        "* 3,10 0",
        "25-31 MAR,OCT *",
        "*/10 4-11/2 *",
        "* */3 5,6",
    ];
    let each = days.iter().flat_map(|day| times.iter().map(move |time| format!("{time} {day}")));
    let dense = ["* * * 3,10 SUN", "*/5 0-4 * 3,4,10,11 SUN"].map(str::to_owned);
    dense.into_iter().chain(each).take(200).collect()
}

// proves CRON-2, CRON-6
#[tokio::test]
async fn two_years_of_due_times_agree_with_a_scan_of_local_minutes() {
    let (from, to) = (at("2026-01-01T00:00:00Z"), at("2028-01-01T00:00:00Z"));
    let expressions = expressions();
    assert_eq!(expressions.iter().collect::<BTreeSet<_>>().len(), 200);
    let jobs = ZONES.iter().flat_map(|zone| expressions.iter().map(move |text| (*zone, text)));
    let jobs: BTreeMap<JobName, (Tz, &String)> = jobs
        .enumerate()
        .map(|(at, (zone, text))| (name(&format!("j{at}")), (zone, text)))
        .collect();
    let schedules = jobs.iter().map(|(job, (zone, text))| {
        (job.clone(), Schedule::cron(vec![Expression::parse(text).unwrap()], *zone))
    });
    let clock = Arc::new(SetClock(Mutex::new(from)));
    let ticker = Ticker::start(clock.clone()).await.unwrap();
    ticker.set(schedules.collect(), from);
    let mut found: BTreeMap<JobName, BTreeSet<DateTime<Utc>>> = BTreeMap::new();
    let mut now = from;
    for step in 0.. {
        // From a minute up to almost a week.
        now = to.min(now + TimeDelta::minutes(1 + step * 7919 % 10_000));
        *clock.0.lock().unwrap() = now;
        for due in ticker.take(now) {
            assert!(due.due_at <= now + TimeDelta::seconds(1), "early: {due:?}");
            let is_new = found.entry(due.job.clone()).or_default().insert(due.due_at);
            assert!(is_new, "twice: {due:?}");
        }
        if now == to {
            break;
        }
    }
    let mut total = 0;
    for (job, (zone, text)) in jobs {
        let expected = due_times(text, zone, from, to);
        let found = found.remove(&job).unwrap_or_default();
        let differ: Vec<_> = expected.symmetric_difference(&found).take(5).collect();
        assert!(differ.is_empty(), "{text} {zone}: {differ:?}");
        total += found.len();
    }
    assert!(total > 200_000, "{total}");
}

/// What happens to the daemon and its clock.
#[derive(Debug, Clone)]
enum Step {
    /// The clock goes on, or the machine sleeps, for this many minutes.
    Pass(u16),
    /// The same, but the runs of the slots that come due do not begin until a later step.
    PassBusy(u16),
    /// The configuration is loaded again.
    Reload,
    /// The clock is set back by this many minutes.
    SetBack(u16),
    /// The daemon stops, and starts again after this many minutes.
    Restart(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..90_u16).prop_map(Step::Pass),
        4 => (0..200_u16).prop_map(Step::PassBusy),
        2 => Just(Step::Reload),
        3 => (90..6000_u16).prop_map(Step::Pass),
        1 => (1..400_u16).prop_map(Step::SetBack),
        2 => (0..3000_u16).prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 1..16)
}

/// A job: the index of its expression, of its zone, of its `catchup` and of its `overlap`, and whether
/// it has a jitter.
type Choice = (usize, usize, usize, usize, bool);

const JITTER: &str = "30m";

fn write_jobs(choices: &[Choice], expressions: &[String]) -> String {
    const CATCHUP: [&str; 3] = ["none", "latest", "all"];
    const OVERLAP: [&str; 6] =
        ["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"];
    let job = |(at, (expression, zone, catchup, overlap, has_jitter)): (usize, &Choice)| {
        serde_json::json!({
            "jitter": if *has_jitter { JITTER } else { "0s" },
            "name": format!("j{at}"), "prompt": "x",
            "schedule": expressions[*expression], "timezone": ZONES[*zone].name(),
            "catchup": CATCHUP[*catchup], "overlap": OVERLAP[*overlap],
        })
    };
    let jobs: Vec<_> = choices.iter().enumerate().map(job).collect();
    // JSON is YAML.
    serde_json::json!({"version": 1, "jobs": jobs}).to_string()
}

async fn check_steps(choices: &[Choice], start: &str, steps: &[Step]) {
    let (expressions, temp) = (expressions(), temp());
    let jobs = write_jobs(choices, &expressions);
    let mut now = at(start);
    let mut epochs = vec![(now, now)];
    let mut daemon = Some(bench(&jobs, start, temp.clone()).await);
    for step in steps {
        match step {
            Step::Pass(minutes) | Step::PassBusy(minutes) => {
                now += TimeDelta::minutes(i64::from(*minutes));
            }
            Step::Reload => {
                let daemon = daemon.as_mut().unwrap();
                let config = Config::clone(&daemon.supervisor.config.borrow());
                daemon.reloads_at_capacity(config).await;
            }
            Step::SetBack(minutes) => {
                now -= TimeDelta::minutes(i64::from(*minutes));
                epochs.push((now, now));
            }
            Step::Restart(minutes) => {
                drop(daemon.take());
                now += TimeDelta::minutes(i64::from(*minutes));
                daemon = Some(bench(&jobs, &now.to_rfc3339(), temp.clone()).await);
            }
        }
        let daemon = daemon.as_mut().unwrap();
        match step {
            Step::PassBusy(_) => daemon.claims(&now.to_rfc3339()).await,
            _ => daemon.goes(&now.to_rfc3339()).await,
        }
        epochs.last_mut().unwrap().1 = now;
        assert!(daemon.is_sound().await, "{step:?}");
    }
    let mut daemon = daemon.unwrap();
    // Until then, slots may wait for their jitter.
    let end = now + TimeDelta::minutes(31);
    daemon.goes(&end.to_rfc3339()).await;
    epochs.last_mut().unwrap().1 = end;
    let ledger = &daemon.supervisor.parts.ledger;
    let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
    let mut left = rows.len();
    for (at, (expression, zone, ..)) in choices.iter().enumerate() {
        for (epoch, (from, to)) in epochs.iter().enumerate() {
            let is_of = |row: &&SlotRow| {
                row.job == format!("j{at}") && row.epoch.number() == i64::try_from(epoch).unwrap()
            };
            let rows: Vec<&SlotRow> = rows.iter().filter(is_of).collect();
            left -= rows.len();
            let mut expected = due_times(&expressions[*expression], ZONES[*zone], *from, *to);
            for row in &rows {
                let last = row.until.unwrap_or(row.due_at);
                let covered: Vec<_> = expected.range(row.due_at..=last).copied().collect();
                assert_eq!(covered.len() as u64, row.count, "twice or not due: {row:?}");
                let is_open = row.state == SlotState::Queued || row.state == SlotState::Running;
                assert!(!is_open, "{row:?}");
                expected.retain(|due| !covered.contains(due));
            }
            expected.retain(|due| *due <= now || epoch + 1 < epochs.len());
            assert!(expected.is_empty(), "lost in epoch {epoch} of j{at}: {expected:?}");
        }
    }
    assert_eq!(left, 0, "rows of unknown jobs or epochs: {rows:?}");
    assert!(daemon.is_sound().await);
}

// proves CRON-3
#[tokio::test]
async fn a_held_slot_survives_a_second_step_to_before_its_due_time() {
    let job = (4, 4, 0, 0, true);
    use Step::{Pass, PassBusy, SetBack};
    let steps =
        [PassBusy(26), SetBack(293), Pass(1), PassBusy(146), SetBack(1), SetBack(1), Pass(0)];
    check_steps(&[job], "2026-10-21T00:00:30Z", &steps).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    // proves CRON-1, CRON-3, CRON-4
    #[test]
    fn suspends_steps_and_restarts_lose_and_double_no_due_time(
        choices in proptest::collection::vec((0..200_usize, 0..6_usize, 0..3_usize, 0..6_usize, any::<bool>()), 1..5),
        start in prop::sample::select(vec![
            "2026-03-26T03:10:00Z", "2026-04-02T17:00:00Z", "2026-10-21T00:00:30Z", "2026-12-30T11:59:59Z",
        ]),
        steps in steps(),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(check_steps(&choices, start, &steps));
    }
}
