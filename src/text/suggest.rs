//! Did-you-mean: the known name that is nearest to a misspelled one.

/// Returns the name in `known` that is nearest to `name`, ignoring case. A name is near enough if
/// it is one edit away, or at most one edit for every three bytes of the shorter name.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= 1.max(candidate.len().min(name.len()) / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["schedule", "prompt", "timezone", "name"];
        assert_eq!(nearest("shedule", known), Some("schedule"));
        assert_eq!(nearest("Time_zone", known), Some("timezone"));
        assert_eq!(nearest("nmae", known), Some("name"));
        assert_eq!(nearest("colour", known), None);
    }
}
