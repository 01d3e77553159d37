// Decodes arbitrary bytes as an answer, in pieces of the size that the first byte gives. Decoding
// must succeed or return an error. The target of each wire format includes this file.

use bytes::Bytes;
use dutyd::config::WireFormat;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let size = bytes.first().map_or(1, |first| usize::from(*first).max(1));
    let pieces: Vec<Result<Bytes, String>> =
        bytes.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let read = dutyd::provider::read_as(FORMAT, futures_util::stream::iter(pieces));
    let _ = runtime.block_on(read);
});
