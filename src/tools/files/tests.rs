use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A working directory `w` beside a secret, with rules that do not allow the secret.
struct Tree {
    temp: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        for directory in ["w/sub", "other", "w/closed"] {
            std::fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        for (file, text) in
            [("w/a", "in"), ("w/sub/b", "deep"), ("secret", "SECRET"), ("other/c", "allowed too")]
        {
            std::fs::write(temp.path().join(file), text).unwrap();
        }
        std::fs::write(temp.path().join("w/closed/k"), "SECRET").unwrap();
        Self { temp }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    fn rules(&self) -> PathRules {
        PathRules {
            working_dir: self.at("w"),
            writable: vec![self.at("w"), self.at("other")],
            denied: vec![self.at("w/closed"), self.at("secret")],
            ..PathRules::default()
        }
    }
}

fn read(rules: &PathRules, path: &str) -> Result<String, ErrorKind> {
    let text = Files::new(rules).text(path);
    text.map_err(|error| error.kind)
}

// proves FS-1, FS-2, FS-3, FS-4, FS-5
// conforms 000-6.4f, 000-6.4h, 000-S6.12
#[test]
fn what_is_opened_lies_where_it_may() {
    let tree = Tree::new();
    let rules = tree.rules();
    symlink("sub/b", tree.at("w/inside")).unwrap();
    symlink(tree.at("w/sub/b"), tree.at("w/inside-absolute")).unwrap();
    symlink("../other/c", tree.at("w/other-tree")).unwrap();
    symlink("../secret", tree.at("w/outside")).unwrap();
    symlink("/etc/hostname", tree.at("w/absolute")).unwrap();
    symlink("..", tree.at("w/up")).unwrap();
    symlink("closed/k", tree.at("w/to-closed")).unwrap();
    symlink("loop", tree.at("w/loop")).unwrap();
    symlink("/proc/self/root/etc/hostname", tree.at("w/magic")).unwrap();
    std::fs::hard_link(tree.at("secret"), tree.at("w/hard")).unwrap();
    nix::unistd::mkfifo(&tree.at("w/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.at("w/socket")).unwrap();
    for (path, expected) in [
        ("a", Ok("in")),
        ("./sub//b", Ok("deep")),
        ("inside", Ok("deep")),
        ("inside-absolute", Ok("deep")),
        ("other-tree", Ok("allowed too")),
        ("missing", Err(ErrorKind::NotFound)),
        ("outside", Err(ErrorKind::Denied)),
        ("absolute", Err(ErrorKind::Denied)),
        ("up/secret", Err(ErrorKind::Denied)),
        ("closed/k", Err(ErrorKind::Denied)),
        ("to-closed", Err(ErrorKind::Denied)),
        ("hard", Err(ErrorKind::Denied)),
        ("magic", Err(ErrorKind::Denied)),
        ("../secret", Err(ErrorKind::Denied)),
        ("fifo", Err(ErrorKind::Denied)),
        ("/dev/zero", Err(ErrorKind::Denied)),
        ("/etc/passwd", Err(ErrorKind::Denied)),
        ("sub", Err(ErrorKind::Io)),
    ] {
        assert_eq!(read(&rules, path), expected.map(str::to_owned), "{path}");
    }
    assert!(read(&rules, "loop").is_err() && read(&rules, "socket").is_err());
}

// proves FS-2
#[test]
fn a_link_that_is_swapped_meanwhile_leads_nowhere() {
    let tree = Tree::new();
    let rules = tree.rules();
    std::fs::create_dir(tree.at("w/real")).unwrap();
    std::fs::write(tree.at("w/real/secret"), "harmless").unwrap();
    symlink("real", tree.at("w/swapped")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (new, link) = (tree.at("w/new"), tree.at("w/swapped"));
            while !stop.load(Ordering::Relaxed) {
                for target in ["..", "real"] {
                    let _ = symlink(target, &new).and_then(|()| std::fs::rename(&new, &link));
                }
            }
        });
        let mut read_at_all = 0;
        for _ in 0..20_000 {
            match read(&rules, "swapped/secret") {
                Ok(text) => {
                    assert_eq!(text, "harmless");
                    read_at_all += 1;
                }
                Err(kind) => {
                    assert!(matches!(kind, ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Io))
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(read_at_all > 0);
    });
}

// proves FS-6
#[test]
fn a_file_is_replaced_whole_and_keeps_its_mode() {
    let tree = Tree::new();
    let rules = tree.rules();
    let files = Files::new(&rules);
    std::fs::set_permissions(tree.at("w/a"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a", tree.at("w/link")).unwrap();
    files.place("link").unwrap().write(b"new").unwrap();
    let mode = std::fs::metadata(tree.at("w/a")).unwrap().permissions().mode() & 0o777;
    assert_eq!((std::fs::read_to_string(tree.at("w/a")).unwrap().as_str(), mode), ("new", 0o640));
    assert!(tree.at("w/link").is_symlink(), "the link must stay a link");
    let place = files.place("x/y/z").unwrap();
    assert!(!place.is_taken());
    place.write(b"made").unwrap();
    assert_eq!(std::fs::read_to_string(tree.at("w/x/y/z")).unwrap(), "made");
    place.remove().unwrap();
    // A failed write leaves no file behind.
    std::fs::create_dir(tree.at("w/full")).unwrap();
    let place = files.place("full/f").unwrap();
    std::fs::create_dir(tree.at("w/full/f")).unwrap();
    assert!(place.write(b"x").is_err());
    assert_eq!(std::fs::read_dir(tree.at("w/full")).unwrap().count(), 1);
    for path in ["../x", "closed/new", "/etc/new", "sub"] {
        assert!(files.place(path).is_err(), "{path}");
    }
    symlink("..", tree.at("w/up")).unwrap();
    assert_eq!(files.place("up/new").map(drop).unwrap_err().kind, ErrorKind::Denied);
    assert!(!tree.at("new").exists());
}

// proves FS-2
#[test]
fn nothing_is_written_through_a_link_to_nothing() {
    let tree = Tree::new();
    let rules = tree.rules();
    let files = Files::new(&rules);
    for (name, target) in [
        ("inside", PathBuf::from("not-there")),
        ("absolute", tree.at("w/not-there")),
        ("outside", "../not-there".into()),
    ] {
        symlink(target, tree.at("w").join(name)).unwrap();
        let error = files.place(name).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{name}: {}", error.message);
        assert!(tree.at("w").join(name).is_symlink(), "{name}");
        assert!(files.place(&format!("{name}/f")).is_err(), "{name}");
    }
    assert!(!tree.at("not-there").exists() && !tree.at("w/not-there").exists());
}

// proves FS-2, FS-4
#[test]
fn a_magic_link_is_not_followed_below_the_root_either() {
    let tree = Tree::new();
    let rules = PathRules { writable: vec!["/".into()], ..tree.rules() };
    let by_root = |name: &str| format!("/proc/self/root{}", tree.at(name).display());
    symlink(by_root("w/a"), tree.at("w/link")).unwrap();
    symlink(tree.at("w/a"), tree.at("w/plain")).unwrap();
    for path in [by_root("w/a"), "link".to_owned(), "/proc/self/cwd".to_owned()] {
        assert_eq!(read(&rules, &path), Err(ErrorKind::Denied), "{path}");
    }
    for path in [by_root("w/a"), by_root("w/new"), "link".to_owned()] {
        let error = Files::new(&rules).place(&path).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{path}");
    }
    assert_eq!(read(&rules, "plain").as_deref(), Ok("in"));
}

// proves FS-6
#[test]
fn a_file_that_is_replaced_loses_its_set_id_bits() {
    let tree = Tree::new();
    let rules = tree.rules();
    for (before, after) in [(0o6755, 0o755), (0o1640, 0o640)] {
        let mode = std::fs::Permissions::from_mode(before);
        std::fs::set_permissions(tree.at("w/a"), mode).unwrap();
        Files::new(&rules).place("a").unwrap().write(b"new").unwrap();
        let mode = std::fs::metadata(tree.at("w/a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, after, "{before:o}");
    }
}

// proves FS-9
#[test]
fn a_name_that_was_shown_escaped_is_opened_as_shown() {
    let tree = Tree::new();
    let odd = |name: &[u8]| tree.at("w").join(std::ffi::OsStr::from_bytes(name));
    std::fs::write(odd(b"a\n\xff"), "odd").unwrap();
    std::fs::write(odd(b"two\n"), "raw").unwrap();
    std::fs::write(odd(b"two\\n"), "literal").unwrap();
    for directory in [&b"d\x1b"[..], b"closed\x1b"] {
        std::fs::create_dir(odd(directory)).unwrap();
        std::fs::write(odd(directory).join("f"), "deep").unwrap();
    }
    symlink(odd(b"d\x1b"), tree.at("w/link")).unwrap();
    std::fs::write(odd(b"d\x1b/g\t"), "behind a link").unwrap();
    let mut rules = tree.rules();
    rules.denied.push(odd(b"closed\x1b"));
    for (path, expected) in [
        ("a\\n\\xff", Ok("odd")),
        ("two\\n", Ok("literal")),
        ("d\\u{1b}/f", Ok("deep")),
        ("link/g\\t", Ok("behind a link")),
        ("closed\\u{1b}/f", Err(ErrorKind::Denied)),
        ("d\\u{1b}/missing\\n", Err(ErrorKind::NotFound)),
        ("\\u{2e}\\u{2e}/secret", Err(ErrorKind::NotFound)),
    ] {
        assert_eq!(read(&rules, path), expected.map(str::to_owned), "{path}");
    }
    let files = Files::new(&rules);
    for (path, name) in
        [("a\\n\\xff", &b"a\n\xff"[..]), ("d\\u{1b}/new", b"d\x1b/new"), ("new\\n", b"new\\n")]
    {
        files.place(path).unwrap().write(b"written").unwrap();
        assert_eq!(std::fs::read(odd(name)).unwrap(), b"written", "{path}");
    }
}

#[test]
fn a_path_with_a_slash_at_its_end_is_no_file() {
    let tree = Tree::new();
    let rules = tree.rules();
    let files = Files::new(&rules);
    for path in ["new/", "a/", "sub/", "sub/.", "a/."] {
        let error = files.place(path).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io, "{path}: {}", error.message);
        assert!(error.message.contains("directory"), "{path}: {}", error.message);
    }
    assert!(!tree.at("w/new").exists());
    assert_eq!(read(&rules, "a/"), Err(ErrorKind::Io));
    assert!(files.open("sub/").unwrap().is_dir);
}
