//! Measures a claim in a ledger that holds 100,000 slots: of one slot, of 10,000 slots that are due
//! at once, and, as the floor, the write of one page with `fdatasync`.
#![expect(clippy::unwrap_used, reason = "a benchmark whose setup fails stops at once")]

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use criterion::{Criterion, criterion_group, criterion_main};
use dutyd::domain::{Epoch, JobName, Origin, RunId, SlotKey, Trigger};
use dutyd::store::{AdoptedSchedule, Claim, Ledger, QueuedRun, Slot, SlotState};
use tokio::runtime::Runtime;

const HISTORY: i64 = 100_000;
const AT_ONCE: usize = 10_000;

fn first() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

fn name(number: usize) -> JobName {
    JobName::parse(&format!("job-{number}")).unwrap()
}

/// Returns the claim of one due time for this many jobs.
fn claim(due_at: DateTime<Utc>, jobs: usize) -> Claim {
    let slot = |number| {
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        let key = SlotKey::new(name(number), Epoch::FIRST, due_at);
        let origin = Origin::of_slot(Trigger::Schedule, key.time, None);
        Slot {
            key: key.clone(),
            span: None,
            is_backfill: false,
            state: SlotState::Queued,
            run_id: Some(run_id.clone()),
            reason: "waits for a free place".to_owned(),
            zone: "Europe/Berlin".to_owned(),
            config_digest: "0".repeat(64),
            left: None,
            queued: Some(QueuedRun { run_id, job: key.job, origin, not_before: None }),
        }
    };
    Claim {
        slots: (0..jobs).map(slot).collect(),
        settled: (0..jobs).map(|number| (name(number), due_at)).collect(),
        ended: None,
        messages: Vec::new(),
    }
}

fn claims(criterion: &mut Criterion) {
    let (runtime, temp) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (ledger, _) = Ledger::open(temp.path(), None).unwrap();
    let schedules = (0..AT_ONCE)
        .map(|number| AdoptedSchedule {
            job: name(number),
            schedule: "{}".to_owned(),
            zone: "UTC".to_owned(),
        })
        .collect();
    runtime
        .block_on(ledger.set_schedules(Epoch::FIRST, schedules, Claim::default(), first()))
        .unwrap();
    let mut due_at = first();
    let mut write = |jobs| {
        due_at += TimeDelta::seconds(1);
        let claim = claim(due_at, jobs);
        let began = Instant::now();
        let claimed = runtime.block_on(ledger.claim(claim, due_at)).unwrap();
        assert!(claimed.iter().all(|claimed| *claimed));
        began.elapsed()
    };
    for _ in 0..HISTORY / i64::try_from(AT_ONCE).unwrap() {
        write(AT_ONCE);
    }
    for (name, jobs) in [("a claim of one slot", 1), ("a claim of 10,000 slots", AT_ONCE)] {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| write(jobs)).sum::<Duration>());
        });
    }
    let file = std::fs::File::create(temp.path().join("floor")).unwrap();
    criterion.bench_function("a write of 4 KiB with fdatasync", |bencher| {
        let mut at = 0;
        bencher.iter(|| {
            file.write_all_at(&[1; 4096], at).unwrap();
            file.sync_data().unwrap();
            at += 4096;
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(8));
    targets = claims
}
criterion_main!(benches);
