//! Tells public addresses from internal and impossible ones.
//!
//! *Source*: the IANA registries of special-purpose addresses for IPv4 and IPv6.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The hosts that can have an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressKind {
    Public,
    Internal,
    /// No host can have it.
    Impossible,
}

/// Non-public blocks, each with its prefix length. 168.63.129.16 is the address of Azure's platform
/// services; most other clouds use 169.254.0.0/16 for theirs.
const INTERNAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
];

const IMPOSSIBLE_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Non-public blocks of 2000::/3: protocol assignments (including Teredo), documentation, and 6to4,
/// which embeds IPv4 addresses.
const INTERNAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// The prefix of IPv6 addresses that embed an IPv4 address, for networks without IPv4.
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

pub(crate) fn kind(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    let is_in = |blocks: &[(Ipv4Addr, u32)]| {
        blocks.iter().any(|(block, bits)| (block.to_bits() ^ address.to_bits()) >> (32 - bits) == 0)
    };
    if is_in(IMPOSSIBLE_V4) {
        AddressKind::Impossible
    } else if is_in(INTERNAL_V4) {
        AddressKind::Internal
    } else {
        AddressKind::Public
    }
}

fn kind_v6(address: Ipv6Addr) -> AddressKind {
    let is_in = |(block, bits): &(Ipv6Addr, u32)| {
        (block.to_bits() ^ address.to_bits()) >> (128 - bits) == 0
    };
    let [.., a, b, c, d] = address.octets();
    if address.to_ipv4_mapped().is_some() || is_in(&NAT64) {
        return kind_v4(Ipv4Addr::new(a, b, c, d));
    }
    if address.is_unspecified() || address.is_multicast() {
        AddressKind::Impossible
    } else if !is_in(&GLOBAL_V6) || INTERNAL_V6.iter().any(is_in) {
        AddressKind::Internal
    } else {
        AddressKind::Public
    }
}
