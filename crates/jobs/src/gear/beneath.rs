//! Files in a folder to which a gear may write: the kernel holds the border (`openat2`: beneath the
//! folder, no link on the way, no other disk), so that no path is looked at before another one is
//! used (trap 61).

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// How a path in such a folder is resolved.
pub(crate) const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A folder that is opened to look into it.
pub(crate) const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Makes a folder, and those above it that are missing, for nobody but us.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a folder; one that was exchanged for a link is none.
pub(crate) fn folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, FOLDER | OFlags::NOFOLLOW, Mode::empty())?)
}

/// Opens a plain file beneath a folder, to read it.
pub(crate) fn plain_file(folder: &OwnedFd, path: &Path) -> io::Result<File> {
    // Without NONBLOCK a named pipe would be waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat2(folder, path, flags, Mode::empty(), BENEATH)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file")),
    }
}

/// Copies at most so many bytes, and shows each piece. A gear that still runs may write to its file
/// for as long as somebody reads it.
pub(crate) fn copy(
    from: &mut impl Read,
    into: &mut impl Write,
    bytes_max: u64,
    mut seen: impl FnMut(&[u8]),
) -> io::Result<u64> {
    let (mut bytes, mut piece) = (0_u64, vec![0; 64 << 10]);
    loop {
        let read = from.read(&mut piece)?;
        let read = piece.get(..read).unwrap_or_default();
        if read.is_empty() {
            return Ok(bytes);
        }
        bytes = bytes.saturating_add(u64::try_from(read.len()).unwrap_or(u64::MAX));
        if bytes > bytes_max {
            let text = format!("it has more than {bytes_max} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        seen(read);
        into.write_all(read)?;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_plain_file_beneath_and_only_so_much_of_it() {
        let place = tempfile::tempdir().expect("a folder");
        let inside = place.path().join("inside");
        make_private(&inside.join("sub")).expect("a folder");
        fs::write(place.path().join("outside"), "secret").expect("a file");
        fs::write(inside.join("sub/file"), "text").expect("a file");
        symlink(place.path(), inside.join("link")).expect("a link");
        symlink("sub/file", inside.join("near")).expect("a link");
        let opened = folder(&inside).expect("it is there");
        for wrong in ["../outside", "link/outside", "near", "sub", "sub/none"] {
            assert!(plain_file(&opened, Path::new(wrong)).is_err(), "{wrong}");
        }
        assert!(folder(&inside.join("link")).is_err());
        let file = || plain_file(&opened, Path::new("sub/file")).expect("a plain file");
        let (mut copied, mut seen) = (Vec::new(), 0);
        let bytes = copy(&mut file(), &mut copied, 4, |piece| seen += piece.len());
        assert_eq!((bytes.expect("it fits"), &*copied, seen), (4, &b"text"[..], 4));
        let more = copy(&mut file(), &mut Vec::new(), 3, |_| {});
        assert_eq!(more.expect_err("too much").kind(), io::ErrorKind::FileTooLarge);
        // A device has no end.
        let endless = &mut File::open("/dev/zero").expect("a device");
        assert!(copy(endless, &mut io::sink(), 1 << 20, |_| {}).is_err());
    }
}
