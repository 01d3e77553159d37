//! Advice on schedules that other schedulers accept and dutyd rejects: what to write instead.

/// Names of months and weekdays in an expression.
const NAMES: [&str; 19] = [
    "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "JAN", "FEB", "MAR", "APR", "MAY", "JUN",
    "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

/// Returns why a rejected text is not a schedule and what to write; `None` if no other scheduler
/// that we know accepts it. `is_valid` tells whether a text is an expression.
pub(super) fn advise(text: &str, is_valid: impl Fn(&str) -> bool) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some(interval) = lower.strip_prefix("@every") {
        let interval = Some(interval.trim()).filter(|span| !span.is_empty()).unwrap_or("10m");
        return Some(format!(
            "an interval has a key of its own: write `every: {interval}` instead of `schedule`"
        ));
    }
    if lower == "@reboot" {
        return Some("there is no such schedule: no job runs because the host or the daemon started; without `schedule`, a job is only started by hand".to_owned());
    }
    let nickname = format!("@{lower}");
    if !text.starts_with('@') && is_valid(&nickname) {
        return Some(format!("write `schedule: \"{nickname}\"`"));
    }
    let zone = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    if let Some((zone, rest)) = zone.and_then(|zone| zone.split_once(char::is_whitespace)) {
        let rest = rest.trim();
        return Some(format!(
            "the zone has a key of its own: write `timezone: {zone}` and `schedule: \"{rest}\"`"
        ));
    }
    of_crontab(text, is_valid)
}

/// Recognizes a line of a crontab, which has a user or a command behind the time.
fn of_crontab(text: &str, is_valid: impl Fn(&str) -> bool) -> Option<String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let of_time = if text.starts_with('@') { 1 } else { 5 };
    let (time, rest) = fields.split_at_checked(of_time)?;
    let time = time.join(" ");
    let is_line = rest.iter().any(|word| is_command(word)) && is_valid(&time);
    is_line.then(|| {
        format!("a schedule has no user and no command: write only the time, `\"{time}\"`")
    })
}

/// Tells whether a word is the name or the path of a program, and not a field.
fn is_command(word: &str) -> bool {
    let is_name = |word: &str| {
        let start = word.get(..3).unwrap_or_default().to_ascii_uppercase();
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && !NAMES.contains(&start.as_str())
    };
    word.starts_with('/') || word.len() > 3 && is_name(word)
}

/// Returns two ranges for one that runs backwards: `22-23,0-2` for `22-2` in the hours 0 to 23.
pub(super) fn split_range(part: &str, least: u32, most: u32) -> Option<String> {
    let (from, to) = part.split_once('-')?;
    let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
    let is_backward = from > to && from <= most && to >= least;
    is_backward.then(|| format!("{from}-{most},{least}-{to}"))
}
