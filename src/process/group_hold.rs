//! The hold on process groups: a process of a tool can leave its group only while the shim agrees.
//!
//! A chain of processes, each of which forks the next one and exits, outruns every scan of `/proc`.
//! But it cannot outrun a signal to its process group: the kernel delivers the signal to all
//! members before any of them can fork again. So when a tool calls `setsid` or `setpgid`, that
//! system call waits for the shim, which owns the listener of the tool's seccomp filter (the
//! descriptor that reports such calls) and lets the system call continue. When the tool call ends,
//! the shim closes the listener. From then on, the kernel refuses both system calls with ENOSYS;
//! the same happens if the shim dies. The existing groups can then be killed one by one, and no new
//! group appears.
//!
//! We do not hold forks: a signal that arrives while a system call waits for the shim can make the
//! system call fail with EINTR, which no program expects of `fork`.
//!
//! *Source*: `seccomp_unotify(2)`; `kill_pgrp` and `copy_process` in the kernel; threat model,
//! PROC-2.
#![expect(unsafe_code, reason = "three system calls without a wrapper; each says why it is sound")]

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// The number of `clone3`, which is the same on every architecture.
const CLONE3: u32 = 435;

/// The bit that marks the system call numbers of the x32 ABI (32-bit pointers on x86-64).
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// The architecture of 32-bit programs on x86-64, and the numbers of `setpgid` and `setsid` there.
const I386: u32 = 0x4000_0003;
const I386_CALLS: [u32; 2] = [57, 66];

/// Lets the shim run on the CPU of the process that waits for it (Linux 6.6): a context switch
/// instead of a wake-up on another core.
const SYNC_WAKE_UP: u64 = 1;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns the instructions that answer with `action` if the accumulator holds the system call
/// `number`.
fn answer(number: u32, action: u32) -> [sock_filter; 2] {
    [step(JUMP_IF_EQUAL, 0, 1, number), step(RETURN, 0, 0, action)]
}

fn native() -> u32 {
    match std::env::consts::ARCH {
        "aarch64" => 0xc000_00b7,
        "riscv64" => 0xc000_00f3,
        _ => 0xc000_003e,
    }
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Returns the instructions with which the filter of every tool begins. System calls that they do
/// not answer reach the instructions that follow.
///
/// These instructions report `clone3` as missing: its flags are in memory, so a filter cannot see
/// `CLONE_INTO_CGROUP`, which starts the child in another control group. Every C library falls back
/// to `clone`. On x86-64, the instructions also refuse the numbers of the x32 ABI, because these
/// are second numbers of the same calls.
pub(super) fn head() -> BpfProgram {
    let mut calls = vec![step(LOAD, 0, 0, NUMBER)];
    calls.extend(answer(CLONE3, ERRNO + libc::ENOSYS.unsigned_abs()));
    #[cfg(target_arch = "x86_64")]
    {
        calls.push(step(JUMP_IF_AT_LEAST, 0, 1, X32_BIT));
        calls.push(step(RETURN, 0, 0, ERRNO + libc::EPERM.unsigned_abs()));
    }
    calls.extend(answer(number(libc::SYS_setsid), NOTIFY));
    calls.extend(answer(number(libc::SYS_setpgid), NOTIFY));
    let length = u8::try_from(calls.len()).unwrap_or(u8::MAX);
    let mut head = vec![
        step(LOAD, 0, 0, ARCHITECTURE),
        // On another architecture, the numbers mean other calls, so skip the instructions.
        step(JUMP_IF_EQUAL, 0, length, native()),
    ];
    head.extend(calls);
    head
}

/// Returns the filter of a tool without a sandbox. It begins with [`head`], treats `clone3`,
/// `setpgid` and `setsid` of 32-bit programs on x86-64 in the same way, and allows every other
/// system call.
pub(super) fn only_the_hold() -> BpfProgram {
    let mut program = head();
    program.extend([
        step(LOAD, 0, 0, ARCHITECTURE),
        step(JUMP_IF_EQUAL, 1, 0, I386),
        step(RETURN, 0, 0, ALLOW),
        step(LOAD, 0, 0, NUMBER),
    ]);
    program.extend(answer(CLONE3, ERRNO + libc::ENOSYS.unsigned_abs()));
    program.extend(I386_CALLS.iter().flat_map(|number| answer(*number, NOTIFY)));
    program.push(step(RETURN, 0, 0, ALLOW));
    program
}

/// Applies `program` to this process permanently and returns the listener. `None` means that the
/// kernel offers no listener: Linux before 5.0, or a container whose own filter already has a
/// listener. Groups are then not held.
///
/// *Errors*: the OS error; the filter is then not in effect.
pub(super) fn put_on(program: &BpfProgram) -> Result<Option<OwnedFd>, Errno> {
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Prefer WAIT_KILLABLE_RECV (since Linux 5.19): without it, each signal interrupts a system
    // call that waits, and the call then restarts or fails with EINTR.
    for flags in [listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listen] {
        match set_filter(program, flags) {
            // SAFETY: with this flag, the kernel returns a new descriptor, which belongs to nothing
            // else.
            Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(Errno::EINVAL | Errno::EBUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    set_filter(&without_listener(program), 0).map(|_| None)
}

/// Returns the filter that allows the calls about which `program` notifies a listener.
fn without_listener(program: &BpfProgram) -> BpfProgram {
    let allowed = |each: &sock_filter| match each {
        each if each.code == RETURN && each.k == NOTIFY => step(RETURN, 0, 0, ALLOW),
        each => each.clone(),
    };
    program.iter().map(allowed).collect()
}

fn set_filter(program: &BpfProgram, flags: libc::c_ulong) -> Result<i32, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::E2BIG)?,
        // Both types are the same C structure.
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the kernel only reads the program, and `len` is its length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    Errno::result(result).map(|fd| i32::try_from(fd).unwrap_or(-1))
}

/// Tells whether the kernel can hold groups.
pub(super) fn is_supported() -> bool {
    const GET_ACTION_AVAIL: libc::c_uint = 2;
    // SAFETY: the kernel only reads the number.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            GET_ACTION_AVAIL,
            0_u64,
            std::ptr::from_ref(&libc::SECCOMP_RET_USER_NOTIF),
        )
    };
    result == 0
}

/// The hold on the groups of one call. Dropping it refuses every new group, also to processes that
/// wait for one.
pub(super) struct GroupHold(OwnedFd);

impl GroupHold {
    pub(super) fn new(listener: OwnedFd) -> Self {
        // SAFETY: the argument is a number. An older kernel refuses it, which only costs time.
        unsafe {
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP)
        };
        Self(listener)
    }

    /// Lets one waiting process continue. The process may have been killed in the meantime, which
    /// is not an error.
    pub(super) fn agree(&self) {
        // SAFETY: the structure consists of integers, so zeros are a valid value; the kernel
        // requires them.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one structure of this type into memory that is ours.
        let received = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                std::ptr::from_mut(&mut asked),
            )
        };
        if received != 0 {
            return;
        }
        let mut answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: 0,
            flags: u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1),
        };
        // SAFETY: the kernel reads one structure of this type.
        unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                std::ptr::from_mut(&mut answer),
            )
        };
    }
}

impl AsFd for GroupHold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_listener_only_the_notified_calls_change() {
        let program = only_the_hold();
        let changed = without_listener(&program);
        assert_eq!(changed.len(), program.len());
        let mut notified = 0;
        for (before, after) in program.iter().zip(&changed) {
            assert_eq!((before.code, before.jt, before.jf), (after.code, after.jt, after.jf));
            let is_notified = before.code == RETURN && before.k == NOTIFY;
            assert_eq!(after.k, if is_notified { ALLOW } else { before.k });
            notified += usize::from(is_notified);
        }
        assert!(notified >= 2, "{notified}");
    }
}
