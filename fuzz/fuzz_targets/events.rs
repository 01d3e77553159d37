//! Any bytes as an event stream, in pieces of any size: it is read or named.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (size, bytes) = input;
    let pieces: Vec<Result<Bytes, String>> =
        bytes.chunks(usize::from(size).max(1)).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _ = runtime.block_on(dutyd::provider::fuzz_read_chat_stream(futures_util::stream::iter(pieces)));
});
