use std::time::Duration;

use super::*;
use crate::domain::{JobName, SlotKey};
use crate::store::{AdoptedSchedule, Claim, Ledger, Slot, SlotState};

/// A ledger with one job from 00:00 on, whose slots are settled up to 05:00.
struct Bench {
    ledger: Ledger,
    _temp: tempfile::TempDir,
}

fn at(time: &str) -> DateTime<Utc> {
    format!("2026-11-23T{time}Z").parse().unwrap()
}

fn slot(job: &str, due_at: DateTime<Utc>) -> Slot {
    Slot {
        key: SlotKey::new(JobName::parse(job).unwrap(), Epoch::FIRST, due_at),
        state: SlotState::Ran,
        run_id: None,
        reason: "ran".to_owned(),
        zone: "UTC".to_owned(),
        config_digest: String::new(),
        span: None,
        is_backfill: false,
        left: None,
        queued: None,
    }
}

fn adopted(job: &str, schedule: &str) -> AdoptedSchedule {
    let (schedule, zone) = (schedule.to_owned(), "UTC".to_owned());
    AdoptedSchedule { job: JobName::parse(job).unwrap(), schedule, zone }
}

impl Bench {
    async fn new(schedule: &str, dues: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(temp.path(), None).unwrap().0;
        let schedules = vec![adopted("j", schedule)];
        ledger
            .set_schedules(Epoch::FIRST, schedules, Claim::default(), at("00:00:00"))
            .await
            .unwrap();
        let slots = dues.iter().map(|due| slot("j", at(due))).collect();
        let settled = vec![(JobName::parse("j").unwrap(), at("05:00:00"))];
        ledger.claim(Claim { slots, settled, ..Claim::default() }, at("05:00:01")).await.unwrap();
        Self { ledger, _temp: temp }
    }

    async fn hourly(dues: &[&str]) -> Self {
        Self::new(r#"{"cron": ["0 * * * *"]}"#, dues).await
    }

    async fn audit(&self, now: &str, jitter: Duration) -> AuditReport {
        let now = at(now);
        self.ledger.read(move |reader| audit(reader, None, |_| jitter, now)).await.unwrap()
    }
}

const ALL: [&str; 5] = ["01:00:00", "02:00:00", "03:00:00", "04:00:00", "05:00:00"];

fn times(slots: &[AuditedSlot]) -> Vec<String> {
    slots.iter().map(|slot| slot.due_at.format("%H:%M").to_string()).collect()
}

#[tokio::test]
async fn a_ledger_that_accounts_for_every_due_time_is_ok() {
    let report = Bench::hourly(&ALL).await.audit("05:30:00", Duration::ZERO).await;
    assert_eq!((report.ok, report.slots), (true, 5), "{report:?}");
    assert_eq!(report.valid_from, Some(at("00:00:00")));
    assert_eq!(report.last_decided_at, Some(at("05:00:01")));
}

#[tokio::test]
async fn a_due_time_without_a_slot_is_a_hole_and_a_slot_without_a_due_time_an_extra() {
    let dues = ["01:00:00", "02:30:00", "03:00:00", "04:00:00", "05:00:00"];
    let report = Bench::hourly(&dues).await.audit("05:30:00", Duration::ZERO).await;
    assert!(!report.ok);
    assert_eq!(times(&report.holes), ["02:00"]);
    assert_eq!(times(&report.extras), ["02:30"]);
    assert_eq!(report.undecided, []);
}

#[tokio::test]
async fn the_first_and_the_last_due_time_of_a_period_count() {
    let bench = Bench::hourly(&ALL[1..]).await;
    assert_eq!(times(&bench.audit("05:30:00", Duration::ZERO).await.holes), ["01:00"]);
    let bench = Bench::hourly(&ALL[..4]).await;
    assert_eq!(times(&bench.audit("05:30:00", Duration::ZERO).await.holes), ["05:00"]);
}

#[tokio::test]
async fn a_due_time_is_undecided_a_minute_after_its_latest_start() {
    let bench = Bench::hourly(&ALL).await;
    let jitter = Duration::from_mins(5);
    assert!(bench.audit("06:00:59", Duration::ZERO).await.ok);
    assert!(bench.audit("06:05:59", jitter).await.ok);
    for (now, jitter, count) in [
        ("06:01:00", Duration::ZERO, 1),
        ("06:06:00", jitter, 1),
        ("08:00:30", Duration::ZERO, 2),
        ("08:01:00", Duration::ZERO, 3),
    ] {
        let report = bench.audit(now, jitter).await;
        assert!(!report.ok);
        let expected = Undecided { job: "j".to_owned(), first_due_at: at("06:00:00"), count };
        assert_eq!(report.undecided, [expected], "{now}");
    }
}

#[tokio::test]
async fn undecided_due_times_are_counted_to_a_thousand() {
    let bench = Bench::new(r#"{"every_ms": 1000}"#, &[]).await;
    for (now, count) in [("05:17:39", 999), ("05:17:40", 1000), ("07:00:00", 1000)] {
        assert_eq!(bench.audit(now, Duration::ZERO).await.undecided[0].count, count, "{now}");
    }
}

/// A later slot can be decided while an earlier one waits for its jitter.
#[tokio::test]
async fn a_slot_after_the_settled_time_is_not_an_extra() {
    for (due, extras) in [("07:00:00", vec![]), ("07:30:00", vec!["07:30"])] {
        let bench = Bench::hourly(&[&ALL[..], &[due]].concat()).await;
        let report = bench.audit("06:00:30", Duration::ZERO).await;
        assert_eq!(times(&report.extras), extras);
    }
}

#[tokio::test]
async fn a_period_that_ended_is_checked_to_its_end_and_waits_for_nothing() {
    let bench = Bench::hourly(&ALL[..4]).await;
    bench
        .ledger
        .set_schedules(Epoch::FIRST, Vec::new(), Claim::default(), at("06:30:00"))
        .await
        .unwrap();
    let report = bench.audit("20:00:00", Duration::ZERO).await;
    assert_eq!(times(&report.holes), ["05:00", "06:00"]);
    assert_eq!((report.extras, report.undecided), (vec![], vec![]));
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_an_error() {
    for schedule in ["", "{}", r#"{"cron": ["never"]}"#] {
        let bench = Bench::new(schedule, &[]).await;
        let now = at("06:00:00");
        let report = bench.ledger.read(move |reader| audit(reader, None, |_| Duration::ZERO, now));
        let error = report.await.unwrap_err().to_string();
        assert!(error.contains("the schedule of job `j` is invalid"), "{error}");
    }
}

#[tokio::test]
async fn a_span_accounts_for_its_due_times_only() {
    let bench = Bench::hourly(&["04:00:00", "05:00:00"]).await;
    let span = |until: &str, count| {
        let span = Some(crate::store::Span { until: at(until), count });
        Slot { span, state: SlotState::Missed, ..slot("j", at("01:00:00")) }
    };
    let claim = |slot: Slot| Claim { slots: vec![slot], ..Claim::default() };
    bench.ledger.claim(claim(span("02:00:00", 2)), at("05:00:01")).await.unwrap();
    let report = bench.audit("05:30:00", Duration::ZERO).await;
    assert_eq!((times(&report.holes), report.slots), (vec!["03:00".to_owned()], 4));
    assert_eq!(times(&report.extras), [""; 0]);

    let bench = Bench::hourly(&["04:00:00", "05:00:00"]).await;
    bench.ledger.claim(claim(span("03:00:00", 9)), at("05:00:01")).await.unwrap();
    let report = bench.audit("05:30:00", Duration::ZERO).await;
    assert_eq!((times(&report.holes), times(&report.extras)), (vec![], vec!["01:00".to_owned()]));
}

#[tokio::test]
async fn a_backfilled_slot_is_not_an_extra() {
    let bench = Bench::hourly(&ALL).await;
    let earlier = Slot { is_backfill: true, ..slot("j", at("00:00:00")) };
    let claim = Claim { slots: vec![earlier], ..Claim::default() };
    bench.ledger.claim(claim, at("05:00:01")).await.unwrap();
    let report = bench.audit("05:30:00", Duration::ZERO).await;
    assert!(report.ok && report.slots == 6, "{report:?}");
}
