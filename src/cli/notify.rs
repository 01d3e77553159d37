//! `dutyd notify test`: sends one test message to a destination.

use std::collections::BTreeSet;
use std::process::ExitCode;

use super::args::{NotifyArgs, NotifyVerb};
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::{SecretsMode, Trust};
use crate::domain::Message;
use crate::provider::HttpClients;
use crate::run::host_name;
use crate::sinks::Delivery;
use crate::text::suggest::nearest;

pub(crate) async fn notify(context: &Context, args: &NotifyArgs) -> Result<ExitCode, CliError> {
    let NotifyVerb::Test { name } = &args.verb;
    let now = context.clock.now();
    let (config, _) = context.config_and_warnings(Trust::Required, now, SecretsMode::Resolve)?;
    let destinations = &config.settings.destinations;
    let Some(destination) = destinations.get(name) else {
        let error = CliError::not_found(format!("there is no destination `{name}`"));
        let near = nearest(name, destinations.keys().map(String::as_str));
        return Err(match near {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("add it to `notifications` in config.yaml"),
        });
    };
    let host = host_name();
    let message = Message {
        event: "test".to_owned(),
        job: None,
        model: None,
        run_id: None,
        outcome: None,
        verdict: None,
        summary: format!("test message of dutyd on {host}"),
        command: "dutyd status".to_owned(),
        at: now,
    };
    let (mut done, mut refused) = (BTreeSet::new(), Vec::new());
    let mut delivery = Delivery {
        message: &message,
        key: format!("{}-test", now.timestamp_millis()),
        host: &host,
        done: &mut done,
        refused: &mut refused,
    };
    let sent = delivery.send(destination, &HttpClients::default()).await;
    let refused = refused.join("; ");
    match sent {
        Ok(()) if refused.is_empty() => {
            output::text(&format!("{name} ({}) took the test message\n", destination.kind()));
            Ok(ExitCode::SUCCESS)
        }
        Ok(()) => {
            Err(CliError::failed(format!("`{name}` took the test message in part: {refused}")))
        }
        Err(error) => Err(CliError::failed(format!(
            "`{name}` did not take the test message: {}",
            error.reason
        ))),
    }
}
