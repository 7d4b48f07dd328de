"""Puts the tiers of an engine together: budgets become blocks, and files get the fingerprint of all they depend on."""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lineclear.base.errors import ConfigError
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.copy_stream import Step
from lineclear.engine.disk_files import DiskFiles, file_size_bytes
from lineclear.engine.disk_stream import DiskStream
from lineclear.engine.engine import TierDrive
from lineclear.engine.free_memory import free_memory_bytes
from lineclear.engine.host_memory import HostMemory
from lineclear.engine.readiness import LoadReadiness
from lineclear.engine.store import KvStore
from lineclear.engine.tier_copies import Copies, MakeReadiness, TierCopies, open_streams
from lineclear.kv.layout import Layout
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.model.digest import model_digest

GIB = 1024**3

SCANS_OF_A_BUDGET = 16
"""A worker looks what others have written each time it has written such a part of the budget itself."""


@dataclass(frozen=True, slots=True)
class TierMaking:
    """What tests and the lab replace: delays and faults before copies, and what passes wait with."""

    before_step: Step | None = None
    before_file: Step | None = None
    make_readiness: MakeReadiness = LoadReadiness
    make_plans: Callable[[TiersConfig, BlockPool, RadixTree], Tiers] = Tiers


PRODUCT = TierMaking()


@dataclass(frozen=True, slots=True)
class BuiltTiers:
    """The deciding half and the acting half."""

    plans: Tiers
    drive: TierDrive


@dataclass(frozen=True, slots=True)
class BuiltCopies:
    """What executes copies on one rank, and the room that all ranks have."""

    copies: Copies
    num_host_blocks: int
    num_disk_blocks: int
    files: DiskFiles | None
    host: HostMemory


def build_tiers(
    cache: CacheConfig,
    config: EngineConfig,
    built: BuiltCopies,
    pool: BlockPool,
    tree: RadixTree,
    making: TierMaking,
) -> BuiltTiers:
    """Build what decides over copies."""
    tiers_config = TiersConfig(
        num_host_blocks=built.num_host_blocks,
        num_disk_blocks=built.num_disk_blocks,
        offload=OffloadPolicy(cache.offload_policy),
        prefetch=PrefetchPolicy(cache.prefetch_policy),
        num_ahead_blocks=-(-config.max_batch_tokens // config.block_size) + config.max_running,
    )
    plans = making.make_plans(tiers_config, pool, tree)
    if built.files is not None:
        plans.note_on_disk([each.key for each in built.files.scan()], 0)
    has_timeout = tiers_config.prefetch is PrefetchPolicy.TIMEOUT
    return BuiltTiers(plans, TierDrive(built.copies, cache.prefetch_seconds if has_timeout else None))


def build_copies(
    cache: CacheConfig,
    config: EngineConfig,
    model_dir: Path,
    store: KvStore,
    making: TierMaking,
    agree: Callable[[int], int],
) -> BuiltCopies:
    """Build the memories below a store, and what copies between them.

    Budgets are bytes, and ranks may store layers of different sizes: `agree` gives the smallest of their numbers.

    Raises: ConfigError for a budget that the machine has no memory for, or that holds no block, or a directory that
        cannot be used.
    """
    layout = store.layout
    host_layout = layout.with_num_blocks(agree(_num_host_blocks(cache, layout)))
    host = HostMemory(host_layout, is_pinned=store.device.type == "cuda")
    num_disk_blocks = agree(_num_disk_blocks(cache, layout))
    files = _open_files(cache, fingerprint(config, model_dir, layout)) if num_disk_blocks else None
    disk = None
    if files is not None:
        scan_writes = max(1, num_disk_blocks // SCANS_OF_A_BUDGET)
        delay = {} if making.before_file is None else {"before_file": making.before_file}
        disk = DiskStream(files, host.block, scan_writes=scan_writes, **delay)
    copies = TierCopies(store, host, open_streams(store, making.before_step), disk, making.make_readiness)
    return BuiltCopies(copies, host_layout.num_blocks, num_disk_blocks, files, host)


def fingerprint(config: EngineConfig, model_dir: Path, layout: Layout) -> bytes:
    """Digest all that the bytes of a block depend on beside its tokens.

    The device, the processor and the version of torch are among it: they round differently, and greedy output must not
    depend on where a block was computed.
    """
    device = torch.device(config.device)
    facts = {
        "model": model_digest(model_dir),
        "layout": repr((layout.shape, layout.block_size)),
        "dtype": config.dtype,
        "drafting": bool(config.draft_tokens),
        "batch_invariant": config.batch_invariant,
        "torch": torch.__version__,
        "device": processor_name(device),
    }
    return hashlib.sha256(repr(sorted(facts.items())).encode()).digest()


def processor_name(device: torch.device) -> str:
    """What rounds: another one may give other bits."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _num_host_blocks(cache: CacheConfig, layout: Layout) -> int:
    size_bytes = int(cache.host_cache_gib * GIB)
    free_bytes = free_memory_bytes(torch.device("cpu"))
    if size_bytes > free_bytes:
        allowed = f"at most {free_bytes / GIB:.1f}, for which there is free memory"
        raise ConfigError("host_cache_gib", cache.host_cache_gib, allowed)
    num_blocks = size_bytes // layout.block_bytes
    if not num_blocks:
        raise ConfigError("host_cache_gib", cache.host_cache_gib, f"at least a block of {layout.block_bytes} bytes")
    return num_blocks


def _num_disk_blocks(cache: CacheConfig, layout: Layout) -> int:
    if cache.disk_cache_dir is None:
        return 0
    file_bytes = file_size_bytes(layout.block_bytes)
    num_blocks = int(cache.disk_cache_gib * GIB) // file_bytes
    if not num_blocks:
        raise ConfigError("disk_cache_gib", cache.disk_cache_gib, f"at least a file of {file_bytes} bytes")
    return num_blocks


def _open_files(cache: CacheConfig, digest: bytes) -> DiskFiles:
    try:
        return DiskFiles(Path(cache.disk_cache_dir or ""), digest)
    except OSError as error:
        allowed = f"a directory that can be written in: {error}"
        raise ConfigError("disk_cache_dir", cache.disk_cache_dir, allowed) from error
