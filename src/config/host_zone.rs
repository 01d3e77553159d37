//! The zone that `timezone: local` stands for: that of the variable `TZ`, else that of
//! `/etc/localtime`, as for every program of this host.
//!
//! *Source*: tzset(3), localtime(5).

use std::path::Path;

use chrono_tz::{TZ_VARIANTS, Tz};

use super::Environment;

/// The file with the rules of the host's zone, often a link into [`ZONES`].
const LOCALTIME: &str = "etc/localtime";

/// The directory with the rules of each zone, by name.
const ZONES: &str = "usr/share/zoneinfo";

/// The zone of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalZone {
    /// The zone in effect.
    pub zone: Tz,
    /// The origin of `zone`.
    pub source: ZoneSource,
    /// The value of `TZ` if it is not the name of a zone. `source` then tells what replaces it.
    pub unknown_variable: Option<String>,
}

/// The origin of the zone of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneSource {
    /// The variable `TZ`.
    Variable,
    /// The name or the rules in `/etc/localtime`.
    Localtime,
    /// `/etc/localtime` is missing: the host uses UTC.
    NotConfigured,
    /// `/etc/localtime` cannot be read, or no zone that we know has its rules. We use UTC.
    Unknown,
}

impl LocalZone {
    /// Determines the zone. `root` is the root directory of the host.
    pub(crate) fn find(environment: &Environment, root: &Path) -> Self {
        let of_host = |unknown_variable| {
            let (zone, source) = zone_of_host(root);
            Self { zone, source, unknown_variable }
        };
        let Some(text) = environment.get("TZ") else { return of_host(None) };
        let name = text.strip_prefix(':').unwrap_or(text);
        if Path::new(name) == Path::new("/").join(LOCALTIME) {
            return of_host(None);
        }
        match zone_named(name) {
            Some(zone) => Self { zone, source: ZoneSource::Variable, unknown_variable: None },
            None => of_host(Some(text.to_owned())),
        }
    }

    /// Returns what determines the zone, for people.
    #[must_use]
    pub fn origin(&self) -> &'static str {
        match self.source {
            ZoneSource::Variable => "the variable TZ",
            ZoneSource::Localtime => "/etc/localtime",
            ZoneSource::NotConfigured => "the default of a host without /etc/localtime",
            ZoneSource::Unknown => "a default: the zone of /etc/localtime has no known name",
        }
    }

    /// Returns why the zone may not be the one that the operator expects; `None` if it is.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self { zone, .. } = self;
        let origin = self.origin();
        match (&self.unknown_variable, self.source) {
            (Some(text), _) => Some(format!(
                "the variable TZ is `{text}`, which is not the name of a time zone; `local` means {zone} instead (from {origin})"
            )),
            (None, ZoneSource::Unknown) => Some(format!(
                "the zone of /etc/localtime has no known name; `local` means {zone} instead"
            )),
            (None, _) => None,
        }
    }
}

fn zone_of_host(root: &Path) -> (Tz, ZoneSource) {
    let file = root.join(LOCALTIME);
    let linked = std::fs::read_link(&file).ok();
    if let Some(zone) = linked.as_deref().and_then(Path::to_str).and_then(zone_named) {
        return (zone, ZoneSource::Localtime);
    }
    let rules = match std::fs::read(&file) {
        Ok(rules) => rules,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return (Tz::UTC, ZoneSource::NotConfigured);
        }
        Err(_) => return (Tz::UTC, ZoneSource::Unknown),
    };
    // Debian keeps the name of the zone in a file of its own, which may be out of date.
    let named = std::fs::read_to_string(root.join("etc/timezone")).ok();
    let named = named.and_then(|name| zone_named(name.trim()));
    let zones = root.join(ZONES);
    let has_rules =
        |zone: &Tz| std::fs::read(zones.join(zone.name())).is_ok_and(|found| found == rules);
    match named.into_iter().chain(TZ_VARIANTS.iter().copied()).find(has_rules) {
        Some(zone) => (zone, ZoneSource::Localtime),
        None => (Tz::UTC, ZoneSource::Unknown),
    }
}

/// Returns the zone of a name, or of a path below the directory of the zones.
fn zone_named(text: &str) -> Option<Tz> {
    let name = text.rsplit_once("zoneinfo/").map_or(text, |(_, name)| name);
    name.strip_prefix("posix/").unwrap_or(name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variable: Option<&str>, root: &Path) -> LocalZone {
        let variables = variable.map(|text| ("TZ".to_owned(), text.to_owned()));
        LocalZone::find(&variables.into_iter().collect(), root)
    }

    #[test]
    fn the_variable_comes_before_the_host() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("etc")).unwrap();
        let link = root.join(LOCALTIME);
        std::os::unix::fs::symlink("../usr/share/zoneinfo/Europe/Berlin", link).unwrap();
        for text in ["Asia/Shanghai", ":Asia/Shanghai", ":/usr/share/zoneinfo/Asia/Shanghai"] {
            let found = find(Some(text), root);
            assert_eq!((found.zone.name(), found.problem()), ("Asia/Shanghai", None), "{text}");
        }
        for text in [None, Some(":/etc/localtime"), Some("")] {
            let found = find(text, root);
            assert_eq!((found.zone.name(), found.problem()), ("Europe/Berlin", None), "{text:?}");
        }
        for text in ["CST", "CST-8", "Europe/Nowhere"] {
            let found = find(Some(text), root);
            let problem = found.problem().unwrap();
            assert_eq!(found.zone.name(), "Europe/Berlin");
            assert!(problem.contains(text) && problem.contains("means Europe/Berlin"), "{problem}");
        }
    }

    #[test]
    fn a_copied_file_is_named_by_its_rules() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(find(None, root).source, ZoneSource::NotConfigured);
        for (path, text) in [
            (LOCALTIME, "rules of Berlin"),
            ("etc/timezone", "Etc/UTC\n"),
            ("usr/share/zoneinfo/Etc/UTC", "rules of UTC"),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = find(None, root);
        assert!(found.source == ZoneSource::Unknown && found.problem().is_some(), "{found:?}");
        let berlin = root.join("usr/share/zoneinfo/Europe/Berlin");
        std::fs::create_dir_all(berlin.parent().unwrap()).unwrap();
        std::fs::write(berlin, "rules of Berlin").unwrap();
        assert_eq!(find(None, root).zone.name(), "Europe/Berlin");
    }
}
