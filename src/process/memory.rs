//! How the C library keeps memory that was freed.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "sets an option of the C library; the use says why it is sound")
)]

/// Makes all threads share one heap. glibc gives each thread one of its own and keeps what was freed there, so that the peaks of one run after
/// another would add up. It must be called before the first thread starts.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the option is a number, and the call takes the allocator's lock.
    let _ = unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1) };
}
