"""Folders that two accounts share and no other enters: that of headrace and that of the requester.

The folder belongs to headrace's account; POSIX ACLs name the other one, also for all new files in
it. Each account owns what it makes: in folders of the first, the other cannot remove its files.
Source: https://man7.org/linux/man-pages/man5/acl.5.html, linux/posix_acl_xattr.h
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import struct
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from headrace.errors import SiteError, StepError

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_OWNER, _NAMED, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_HEADER, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_VERSION = 2
_READ, _ALL = 4, 7
_OWN = {"": 0o1770, "runs": 0o1770, "leases": 0o1770, "leases/.queue": 0o770}
"""Folders with their modes, made before the other account could put links in their place; the
sticky bit keeps it from removing files of this account."""

_HAS_NONE = (errno.ENODATA, errno.ENOTSUP)


def share(folder: Path, account: str) -> None:
    """Make a folder of this account that another account may use too, with all files in it.

    Raises:
        SiteError: It cannot be made, another account owns it, or its file system has no ACLs.
    """
    user = pwd.getpwnam(account)
    acl = _acl(os.getuid(), user.pw_uid)
    advice = f"It is made in a folder of this account, {pwd.getpwuid(os.getuid()).pw_name}, that "
    advice += "others may pass through (chmod a+x), on a file system with POSIX ACLs"
    try:
        _check_way(folder, user, advice)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for name, mode in _OWN.items():
            each = folder / name
            each.mkdir(exist_ok=True, mode=0o700)
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise SiteError(f"{each} belongs to another account (uid {found.st_uid})", advice)
            acls = [_read(each, kind) for kind in (_ACCESS, _DEFAULT)]
            if acls != 2 * [_read_acl(acl)] or stat.S_IMODE(found.st_mode) != mode:
                os.setxattr(each, _DEFAULT, acl)
                os.setxattr(each, _ACCESS, acl)
                each.chmod(mode)
        _named.cache_clear()
        _outermost.cache_clear()
    except OSError as error:
        raise SiteError(
            f"{folder} cannot be shared with account '{account}': {error.strerror or error}", advice
        ) from error


def _check_way(folder: Path, user: pwd.struct_passwd, advice: str) -> None:
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    for each in filter(Path.exists, folder.absolute().parents):
        found = each.stat()
        bit = stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
        bit = stat.S_IXUSR if found.st_uid == user.pw_uid else bit
        if not found.st_mode & bit and not _read(each, _ACCESS):
            what = f"Account '{user.pw_name}' cannot pass through {each}"
            raise SiteError(f"{what} ({stat.filemode(found.st_mode)}) to {folder}", advice)


def is_shared(folder: Path) -> bool:
    """Whether a folder is shared in this way, or is in a shared one."""
    return bool(_named(folder))


def private_mode(folder: Path) -> int:
    """Return the mode of a file that only its owner may write; the other account may read it."""
    return 0o640 if is_shared(folder) else 0o600


def private_folder_mode(parent: Path, *, keeps: bool = False) -> int:
    """Return the mode of a private folder; with `keeps` each account removes only its own files."""
    if not is_shared(parent):
        return 0o700
    return 0o1770 if keeps and _other(parent) is not None else 0o770


def open_to_read(path: Path) -> BinaryIO:
    """Open a file; in a shared folder only if the other account may read it as well.

    Otherwise that account could make this one read any file for it, by a link.

    Raises:
        StepError: The other account may not read it.
    """
    other = _other(path.parent)
    if other is None:
        return path.open("rb")
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if _may_read(file.fileno(), other):
        return file
    file.close()
    raise StepError(
        f"{path} leads to a file that uid {other}, whose folder it is in, may not read itself",
        "It is a link of another account, or its mode was changed: remove it.",
    )


def _may_read(handle: int, uid: int) -> bool:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        return False
    if found.st_uid == uid:
        return True
    entries = _read(handle, _ACCESS)
    mask = next((each[1] for each in entries if each[0] == _MASK), 0)
    return any(tag == _NAMED and who == uid and rights & mask & _READ
               for tag, rights, who in entries)  # fmt: skip


def _other(folder: Path) -> int | None:
    """Return the uid that shares the outermost shared folder if this account owns it; else None."""
    outermost = _outermost(folder.absolute())
    if outermost is None or outermost.stat().st_uid != os.getuid():
        return None
    return next(iter(_named(outermost) - {os.getuid()}), None)


@lru_cache(maxsize=4096)
def _outermost(folder: Path) -> Path | None:
    above = folder.parent
    found = None if above == folder else _outermost(above)
    return found or (folder if _named(folder) else None)


@lru_cache(maxsize=4096)
def _named(folder: Path) -> frozenset[int]:
    """Return the uids of the two accounts that share a folder; empty if it is not shared."""
    entries = _read(folder, _DEFAULT)
    named = frozenset(who for tag, _, who in entries if tag == _NAMED)
    is_ours = bool(named) and entries == _read_acl(_acl(*sorted(named)))
    return named if is_ours else frozenset()


def _acl(*uids: int) -> bytes:
    entries = [
        (_OWNER, _ALL, _NO_ID),
        *((_NAMED, _ALL, uid) for uid in sorted(uids)),
        (_GROUP, 0, _NO_ID),
        (_MASK, _ALL, _NO_ID),
        (_OTHERS, 0, _NO_ID),
    ]
    return _HEADER.pack(_VERSION) + b"".join(_ENTRY.pack(*each) for each in entries)


def _read_acl(text: bytes) -> list[tuple[int, int, int]]:
    return list(_ENTRY.iter_unpack(text[_HEADER.size :]))


def _read(file: Path | int, kind: str) -> list[tuple[int, int, int]]:
    try:
        return _read_acl(os.getxattr(file, kind))
    except OSError as error:
        if error.errno not in _HAS_NONE:
            raise
        return []
