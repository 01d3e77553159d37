//! Locations of the configuration and state directories.
//!
//! *Source*: `docs/design/config.md`.

use std::path::{Path, PathBuf};

use super::Environment;

/// The directory of the system daemon's control socket.
pub const SYSTEM_RUNTIME_DIRECTORY: &str = "/run/dutyd";

/// The name of the file with the key of the control socket, beside the socket.
pub const CONTROL_KEY: &str = "control.key";

/// The reason why a directory cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirError {
    /// Neither an option nor a variable names the directory, and `HOME` is not set.
    #[error("cannot determine the {what} directory: set --{what}-dir or HOME")]
    Unknown {
        /// `config` or `state`.
        what: &'static str,
    },
}

/// The configuration and state directories; both are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Holds `config.yaml`, `jobs.yaml` and `tools.yaml`.
    pub config: PathBuf,
    /// Holds transcripts, ledger and index, and the control socket unless `$RUNTIME_DIRECTORY` is
    /// set.
    pub state: PathBuf,
}

impl Dirs {
    /// Looks up each directory in this order: flag, our variable, systemd's variable, the system
    /// directory for root, then XDG's variable and `HOME` for other users.
    ///
    /// *Errors*: [`DirError`] if none of these is set, which can only happen to a user other than
    /// root.
    pub fn find(
        config_flag: Option<&Path>,
        state_flag: Option<&Path>,
        environment: &Environment,
        is_root: bool,
    ) -> Result<Self, DirError> {
        let look =
            |flag: Option<&Path>, what, names: [&str; 2], xdg: (&str, &str), system: &str| {
                flag.map(Path::to_path_buf)
                    .or_else(|| {
                        names
                            .iter()
                            .find_map(|name| environment.get(name))
                            .and_then(|value| value.split(':').next())
                            .map(PathBuf::from)
                    })
                    .or_else(|| is_root.then(|| PathBuf::from(system)))
                    .or_else(|| environment.get(xdg.0).map(|base| Path::new(base).join("dutyd")))
                    .or_else(|| {
                        environment
                            .get("HOME")
                            .map(|home| Path::new(home).join(xdg.1).join("dutyd"))
                    })
                    .map(|path| std::path::absolute(&path).unwrap_or(path))
                    .ok_or(DirError::Unknown { what })
            };
        Ok(Self {
            config: look(
                config_flag,
                "config",
                ["DUTYD_CONFIG_DIR", "CONFIGURATION_DIRECTORY"],
                ("XDG_CONFIG_HOME", ".config"),
                "/etc/dutyd",
            )?,
            state: look(
                state_flag,
                "state",
                ["DUTYD_STATE_DIR", "STATE_DIRECTORY"],
                ("XDG_STATE_HOME", ".local/state"),
                "/var/lib/dutyd",
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_flag_own_systemd_xdg_home_system() {
        let environment = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Environment>()
        };
        let check = |flag: Option<&str>, pairs: &[(&str, &str)], root: bool, expected: &str| {
            let dirs = Dirs::find(flag.map(Path::new), None, &environment(pairs), root).unwrap();
            assert_eq!(dirs.config, Path::new(expected));
        };
        check(Some("/x"), &[("DUTYD_CONFIG_DIR", "/a"), ("HOME", "/h")], false, "/x");
        check(
            None,
            &[("DUTYD_CONFIG_DIR", "/a"), ("CONFIGURATION_DIRECTORY", "/b"), ("HOME", "/h")],
            false,
            "/a",
        );
        check(None, &[("CONFIGURATION_DIRECTORY", "/b:/c"), ("HOME", "/h")], false, "/b");
        check(None, &[("XDG_CONFIG_HOME", "/xdg"), ("HOME", "/h")], false, "/xdg/dutyd");
        check(None, &[("HOME", "/h")], false, "/h/.config/dutyd");
        check(None, &[("HOME", "/root")], true, "/etc/dutyd");
        assert!(Dirs::find(None, None, &environment(&[]), false).is_err());
    }
}
