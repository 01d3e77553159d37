//! Reads arbitrary bytes as the id of a model, as what a provider says of a model, and as an error
//! that may refuse a parameter. The first byte selects the wire format.
#![no_main]

use dutyd::config::WireFormat;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let at = usize::from(*first) % WireFormat::ALL.len();
    let Some(format) = WireFormat::ALL.get(at).copied() else { return };
    let text = String::from_utf8_lossy(rest);
    let _ = dutyd::catalogue::ModelId::parse(&text);
    let _ = dutyd::provider::read_metadata(format, "m", rest);
    let _ = dutyd::provider::refused_parameter(format, 400, &text);
});
