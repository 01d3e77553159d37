//! Reads arbitrary bytes as what an MCP server sends while some requests are open. The first byte gives
//! their number. Each message that results answers an open request or is one of the server's own.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let _ = dutyd::tools::read_as_answer(rest, first % 4);
});
