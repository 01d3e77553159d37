//! The thin binary: runs the command line, or the helper process that an internal verb names.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == dutyd::process::FORK_SERVER_VERB) {
        let code = dutyd::process::run_fork_server();
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    if std::env::args_os().nth(1).is_some_and(|verb| verb == dutyd::tools::CONVERTER_VERB) {
        return dutyd::tools::run_converter(std::env::args().nth(2).as_deref());
    }
    if std::env::args_os().nth(1).is_some_and(|verb| verb == dutyd::process::RELAY_VERB) {
        let code = dutyd::process::run_relay(std::env::args_os().skip(2));
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    dutyd::cli::main()
}
