//! Judges arbitrary text as a URL, and converts it as a web page. Only URLs of listed hosts may be
//! accepted, and every page must be converted.
#![no_main]

use dutyd::config::AllowedHost;
use dutyd::gate::DomainRules;
use dutyd::text::html;
use libfuzzer_sys::fuzz_target;

/// Bytes of a page, inclusive. A page of this size cannot nest so deeply that the stack overflows.
const PAGE: usize = 8192;

fuzz_target!(|text: &str| {
    let entries = [("good.example", false), ("*.good.example", false), ("127.0.0.1", true)];
    let hosts = entries.iter().filter_map(|(host, internal)| AllowedHost::new(host, *internal).ok());
    let rules = DomainRules { hosts: hosts.collect(), is_offline: false };
    if let Ok(target) = rules.target(text) {
        assert!(matches!(target.url.scheme(), "http" | "https") && target.url.username().is_empty());
        let host = target.host.to_string();
        let host = host.strip_suffix('.').unwrap_or(&host);
        assert!(host == "good.example" || host.ends_with(".good.example") || host == "127.0.0.1");
    }
    if text.len() <= PAGE {
        assert!(html::markdown(text).is_ok() && html::words(text).is_ok());
    }
});
