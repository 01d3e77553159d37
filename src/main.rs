//! The thin binary: the shim's verb, else the command line.

fn main() {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == dutyd::process::SHIM_VERB) {
        std::process::exit(dutyd::process::run_shim());
    }
}
