"""The copies between tiers, as plain data: what every rank of an instance executes alike, each on the parts it stores.

    Tiers ──Copy──▶ the engine's copy streams and disk ──CopyEnd──▶ Tiers

A copy moves whole blocks with all their parts: latent, index and the draft layer's. Between a copy and its end its
blocks are held (see `tiers`); each copy has exactly one end, whatever becomes of the request that it was made for.
"""

from enum import StrEnum
from typing import NewType, TypeAlias

import msgspec

from lineclear.base.ids import BlockId
from lineclear.kv.prefix_key import PrefixKey

CopyId = NewType("CopyId", int)
"""Unique for the life of a worker, counting up from 0."""


class CopyFailure(StrEnum):
    """Why a copy, or the rest of it, has failed."""

    COPY = "copy"
    """Between device and host."""
    MISSING = "missing"
    """The file is gone: another worker needed its room."""
    DAMAGED = "damaged"
    """The file is cut short, or its content is not what was written."""
    FOREIGN = "foreign"
    """The file is whole, and of another format, model, layout or prefix."""
    IO = "io"
    """The file system says no."""
    FULL = "full"
    """The disk has no room."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Host to device; block i of the one goes to block i of the other."""

    copy_id: CopyId
    host_block_ids: tuple[BlockId, ...]
    device_block_ids: tuple[BlockId, ...]


class Offload(msgspec.Struct, frozen=True, tag="offload"):
    """Device to host."""

    copy_id: CopyId
    device_block_ids: tuple[BlockId, ...]
    host_block_ids: tuple[BlockId, ...]


class DiskFind(msgspec.Struct, frozen=True, tag="disk_find"):
    """Say how many of these are on disk, up to the first that is not; other workers write there too."""

    copy_id: CopyId
    keys: tuple[PrefixKey, ...]


class DiskRead(msgspec.Struct, frozen=True, tag="disk_read"):
    """Disk to host, in order, up to the first that fails."""

    copy_id: CopyId
    keys: tuple[PrefixKey, ...]
    host_block_ids: tuple[BlockId, ...]


class DiskWrite(msgspec.Struct, frozen=True, tag="disk_write"):
    """Host to disk, in order, up to the first that fails."""

    copy_id: CopyId
    keys: tuple[PrefixKey, ...]
    host_block_ids: tuple[BlockId, ...]


class DiskDelete(msgspec.Struct, frozen=True, tag="disk_delete"):
    """Give up files. Nobody waits for it: it has no end.

    Order: after every earlier write.
    """

    keys: tuple[PrefixKey, ...]


Copy: TypeAlias = Load | Offload | DiskFind | DiskRead | DiskWrite | DiskDelete


class CopyEnd(msgspec.Struct, frozen=True):
    """What became of a copy. Nothing of it touches its blocks any more."""

    copy_id: CopyId
    num_done: int
    """Of a load or an offload, all blocks or none; on disk, files from the first on."""
    failure: CopyFailure | None = None
    """Why not all; of a find, which cannot fail, always None."""
