//! The hold on process groups: a tool's process can leave its group only while its shim agrees.
//!
//! A chain of processes, each of which forks the next and ends, outruns every scan of `/proc`. A signal to a process group does not miss it: the
//! kernel delivers it to all members before any of them can fork again. So `setsid` and `setpgid` of a tool wait for the shim, which holds the
//! listener of the tool's seccomp filter and lets them continue. The shim closes the listener when the call ends; from then on, the kernel refuses
//! both with ENOSYS, also after the death of the shim. The groups that there are then can be killed one by one, and none is added.
//!
//! Forks are not held: a signal that comes while a held call waits makes it fail with EINTR, which no program expects of `fork`.
//!
//! *Source*: `seccomp_unotify(2)`; `kill_pgrp` and `copy_process` in the kernel; threat model, PROC-2.
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

/// One number on every architecture.
const CLONE3: u32 = 435;

/// The ABI with 32-bit pointers and the numbers of x86-64.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// The architecture of 32-bit programs on x86-64, and its numbers of `setpgid` and `setsid`.
const I386: u32 = 0x4000_0003;
const I386_CALLS: [u32; 2] = [57, 66];

/// Lets the shim run on the CPU of the process that waits for it (Linux 6.6): one switch instead of a wake-up on another core.
const SYNC_WAKE_UP: u64 = 1;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns `number` from the accumulator, answered with `action`.
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

/// Returns the beginning of every filter of a tool; what it does not answer is left to the program behind it.
///
/// `clone3` is reported as missing: its flags lie in memory, where a filter cannot see that one of them leads into another control group. Every C
/// library falls back to `clone`. The x32 numbers are refused, because they name the same calls a second time.
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
        // The numbers of another architecture mean other calls.
        step(JUMP_IF_EQUAL, 0, length, native()),
    ];
    head.extend(calls);
    head
}

/// Returns the program of a tool without a sandbox: everything is allowed, a new group while the shim agrees.
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

/// Puts `program` on this process, for good; returns the listener. `None`: the kernel has no listener for us (Linux before 5.0, or a container that
/// has one already); groups are then not held.
///
/// *Errors*: what the kernel says; the filter is not in effect then.
pub(super) fn put_on(program: &BpfProgram) -> Result<Option<OwnedFd>, Errno> {
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Without this flag, each signal makes a waiting call start anew (Linux 5.19).
    for flags in [listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, listen] {
        match set_filter(program, flags) {
            // SAFETY: with this flag, the kernel returns a new descriptor, which belongs to nothing else.
            Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(Errno::EINVAL | Errno::EBUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    let allowed = |each: &sock_filter| match each {
        each if each.code == RETURN && each.k == NOTIFY => step(RETURN, 0, 0, ALLOW),
        each => each.clone(),
    };
    set_filter(&program.iter().map(allowed).collect(), 0).map(|_| None)
}

fn set_filter(program: &BpfProgram, flags: libc::c_ulong) -> Result<i32, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::E2BIG)?,
        // The same C structure under another name.
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the kernel only reads the program, whose length is its own.
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

/// Returns whether the kernel can hold groups.
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

/// The hold on the groups of one call. Dropping it refuses every new one, those that wait included.
pub(super) struct GroupHold(OwnedFd);

impl GroupHold {
    pub(super) fn new(listener: OwnedFd) -> Self {
        // SAFETY: the kernel takes a number. An older one refuses it, and only is slower.
        unsafe {
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP)
        };
        Self(listener)
    }

    /// Lets one process that waits continue. The process may have been killed in between, which is not an error.
    pub(super) fn agree(&self) {
        // SAFETY: both structures consist of numbers, for which zero is a value; the kernel demands a zeroed one.
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
