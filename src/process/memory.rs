//! Limits the freed memory that the C library keeps.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "calls to the C library; each use says why it is sound")
)]

/// Makes all threads share one heap. By default, glibc gives each thread its own heap and keeps
/// freed memory there, so the peaks of successive runs would add up. Call this before the first
/// thread starts.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the option is a number, and the call takes the allocator's lock.
    let _ = unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1) };
}

/// Returns freed memory to the system. Loading a configuration frees many times as much memory as
/// the configuration occupies, and glibc would hold the freed memory forever.
pub fn return_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes the allocator's lock, and only free pages are returned.
    let _ = unsafe { nix::libc::malloc_trim(0) };
}
