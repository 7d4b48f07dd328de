"""The folder of one running service, and the removal of those whose service was killed.

A service holds a lock on a file in its folder for as long as it lives. The kernel ends the lock with the process, so a
folder whose lock can be had belongs to nobody: process ids, which are used again, prove nothing and are not looked at.

Invariants:
1. A lock file by its final name has been locked by its service: it is locked first and named then.
2. Only a folder with a lock file that was ours to lock is removed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "lineclear-"
LOCK_FILE = "service.lock"


@contextmanager
def run_folder(parent: Path | None = None) -> Generator[Path]:
    """A new folder that only this user enters, removed at the end; folders of killed services are removed first.

    `parent` is where these folders are: the system's folder for temporary files, unless told otherwise.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as name:  # its mode is 0700
        folder = Path(name)
        unnamed = folder / f"{LOCK_FILE}.new"
        with unnamed.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(folder / LOCK_FILE)
            yield folder


def _remove_abandoned(parent: Path) -> None:
    for lock_path in parent.glob(f"{PREFIX}*/{LOCK_FILE}"):
        with suppress(OSError):  # another user's, another service's, or just removed
            _remove_if_abandoned(lock_path)


def _remove_if_abandoned(lock_path: Path) -> None:
    """Remove the folder of a lock file.

    Raises:
        OSError: The lock is held, or the folder is not ours.
    """
    folder = lock_path.parent
    if folder.lstat().st_uid != os.getuid():
        return
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock_fd)
