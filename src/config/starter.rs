//! The files that `init` writes: the examples of the repository, as they are.

/// A starter file.
#[derive(Debug, Clone, Copy)]
pub struct StarterFile {
    /// Its name in the configuration directory.
    pub name: &'static str,
    /// Its content.
    pub text: &'static str,
}

/// The starter files, in the order in which they are written.
pub const STARTER_FILES: &[StarterFile] = &[
    StarterFile { name: "config.yaml", text: include_str!("../../config.example.yaml") },
    StarterFile { name: "jobs.yaml", text: include_str!("../../jobs.example.yaml") },
    StarterFile { name: "tools.yaml", text: include_str!("../../tools.example.yaml") },
    StarterFile {
        name: "offline.script.yaml",
        text: include_str!("../../offline.script.example.yaml"),
    },
];
