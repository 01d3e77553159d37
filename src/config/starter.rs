//! The files that `dutyd init` writes: verbatim copies of the repository's examples.

/// A file that `dutyd init` writes.
#[derive(Debug, Clone, Copy)]
pub struct StarterFile {
    /// The file name in the configuration directory.
    pub name: &'static str,
    /// The content of the file.
    pub text: &'static str,
}

/// The starter files, in the order in which `dutyd init` writes them.
pub const STARTER_FILES: &[StarterFile] = &[
    StarterFile { name: "config.yaml", text: include_str!("../../config.example.yaml") },
    StarterFile { name: "jobs.yaml", text: include_str!("../../jobs.example.yaml") },
    StarterFile { name: "tools.yaml", text: include_str!("../../tools.example.yaml") },
    StarterFile {
        name: "offline.script.yaml",
        text: include_str!("../../offline.script.example.yaml"),
    },
];
