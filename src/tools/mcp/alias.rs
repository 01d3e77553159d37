//! The name under which a model sees a tool. MCP allows dots, slashes and long names; providers
//! reject a whole request with such a name.
//!
//! Policies, pins and transcripts keep the tool's own name.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// Maximum characters of a tool name that every provider accepts.
const NAME_CHARACTERS: usize = 64;

/// Characters of the digest at the end of an alias.
const DIGEST_CHARACTERS: usize = 8;

/// Returns the name under which a model sees a tool: its own name, or an alias if a provider would
/// reject that. The alias depends only on the name. Two names have the same alias only if their
/// digests begin alike.
#[must_use]
pub fn name_for_models(name: &str) -> Cow<'_, str> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.len() <= NAME_CHARACTERS && name.chars().all(is_fit) {
        return Cow::Borrowed(name);
    }
    let kept = name.chars().take(NAME_CHARACTERS - DIGEST_CHARACTERS - 1);
    let mut alias: String = kept.map(|c| if is_fit(c) { c } else { '_' }).collect();
    alias.push('_');
    alias.extend(hex::encode(Sha256::digest(name)).chars().take(DIGEST_CHARACTERS));
    Cow::Owned(alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_stable_short_and_different_for_each_name() {
        assert_eq!(name_for_models("gh__search_code"), "gh__search_code");
        assert_eq!(name_for_models("gh__admin.tools.list"), "gh__admin_tools_list_bb93c9a3");
        let long = |last: char| format!("gh__{}{last}", "a".repeat(70));
        let (one, two) = (long('1'), long('2'));
        let (one, two) = (name_for_models(&one), name_for_models(&two));
        assert!(one.len() == 64 && two.len() == 64 && one != two, "{one} {two}");
        assert_ne!(name_for_models("a.b"), name_for_models("a/b"));
    }
}
