//! Snapshots `--help` of each verb: a renamed verb, flag or exit code changes the snapshot.

use crate::support::Place;

/// Returns the verbs of a help, without `help`.
fn verbs(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| !["Commands:", "Configure and try:"].contains(line));
    let lines = lines.take_while(|line| !line.starts_with("Options:"));
    let names = lines.filter_map(|line| {
        let name = line.split_whitespace().next()?;
        line.starts_with("  ").then(|| name.to_owned())
    });
    names.filter(|name| name != "help").collect()
}

fn help(place: &Place, verb: &[&str]) -> String {
    let done = place.dutyd(&[verb, &["--help"]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{verb:?}");
    let mut text = format!("$ dutyd {}\n{}", [verb, &["--help"]].concat().join(" "), done.stdout);
    for inner in verbs(&done.stdout) {
        text.push('\n');
        text.push_str(&help(place, &[verb, &[inner.as_str()]].concat()));
    }
    text
}

#[test]
fn every_verb_and_flag_is_named_in_the_help() {
    let place = Place::new(&[]);
    insta::assert_snapshot!(help(&place, &[]));
}

#[test]
fn each_verb_has_its_synopsis_in_the_manual() {
    let place = Place::new(&[]);
    let manual = place.dutyd(&["man"]).stdout.replace("\\-", "-");
    for verb in verbs(&place.dutyd(&["--help"]).stdout) {
        let synopsis = format!("\\fBdutyd {verb}\\fR");
        assert!(manual.contains(&synopsis), "{verb} has no synopsis");
    }
}

#[test]
fn every_exit_code_is_named_in_the_manual() {
    let manual = Place::new(&[]).dutyd(&["man"]).stdout;
    let codes: String =
        manual.lines().skip_while(|line| !line.contains("EXIT")).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(codes);
}
