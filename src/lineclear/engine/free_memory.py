"""How much memory a device has left for the KV cache."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP_MAX = Path("/sys/fs/cgroup/memory.max")
CGROUP_CURRENT = Path("/sys/fs/cgroup/memory.current")


def free_memory_bytes(device: torch.device) -> int:
    """Bytes that can be had on a device: on the CPU the machine's and the container's, whichever is less."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    container, machine = _container_bytes(), _machine_bytes()
    return machine if container is None else min(machine, container)


def _machine_bytes() -> int:
    """What the kernel could give without swapping, the page cache included."""
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{MEMINFO} has no MemAvailable")


def _container_bytes() -> int | None:
    """What the control group's limit leaves; None without a limit."""
    try:
        limit, current = (path.read_text(encoding="ascii").strip() for path in (CGROUP_MAX, CGROUP_CURRENT))
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(current))
