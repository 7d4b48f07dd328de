"""The code corpus: the Python standard library's own sources, split by file into training and held-out parts.

A file is held out iff the first byte of the SHA-256 of its path below the library root is under 13 (5 %), so the split
does not depend on the order in which files are listed.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SKIPPED_DIRS = frozenset(
    {"test", "tests", "idle_test", "encodings", "lib2to3", "idlelib", "pydoc_data", "site-packages", "__pycache__"}
)
HELD_OUT_BELOW = 13


@dataclass(frozen=True)
class Corpus:
    """Source texts, one string a file."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]


def load_corpus(root: Path | None = None) -> Corpus:
    """Read every library source under `root` (by default the running interpreter's standard library)."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_DIRS.isdisjoint(relative.parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            (held_out if is_held_out(relative.as_posix()) else train).append(text)
    return Corpus(tuple(train), tuple(held_out))


def is_held_out(relative_path: str) -> bool:
    """Whether the file at `relative_path` belongs to the held-out part."""
    return hashlib.sha256(relative_path.encode()).digest()[0] < HELD_OUT_BELOW
