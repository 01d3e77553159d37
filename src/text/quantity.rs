//! Durations and sizes as operators write them: `90s`, `15m`, `1h30m`, `200KB`, `64MiB`.

use std::time::Duration;

/// The longest accepted duration. Adding it to the current time cannot overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses a duration.
///
/// *Errors*: a sentence for the operator. A number without a unit is rejected.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text)?;
    if parsed > LONGEST {
        return Err(format!("`{text}` is longer than 366d"));
    }
    Ok(parsed)
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        format!("`{text}` is not a duration: write a number and a unit, such as 90s, 15m, 2h or 1d")
    })
}

/// Parses a size in bytes. KB, MB and GB are powers of 1000; KiB, MiB and GiB are powers of 1024.
///
/// *Errors*: a sentence for the operator.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(bad_size(text)),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(|| bad_size(text))
}

fn bad_size(text: &str) -> String {
    format!("`{text}` is not a size: write a number and a unit, such as 200KB or 64MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_need_a_unit() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1d"), Ok(Duration::from_secs(86_400)));
        assert!(duration("90").is_err());
        assert!(duration("-1s").is_err());
        assert!(duration("20000000000000w").is_err());
        assert!(duration("367d").is_err());
        assert_eq!(size("200KB"), Ok(200_000));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert!(size("64").is_err());
        assert!(size("99999999999999999999GiB").is_err());
    }
}
