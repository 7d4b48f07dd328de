"""What `lineclear ablate` runs: a grid of cells, read from TOML.

name = "first fault"
seed = 7
requests = 400            # of each cell
num_prompts = 64
prompt_len = [40, 240]    # tokens
max_tokens = 6
leaving_share = 0.25      # clients that leave
longest_patience = 1.2    # seconds
options = ["--max-total-tokens", "1536"]

[grid]
faults = [[], ["late_writes"], ["late_writes", "reuse_without_line_clear"]]
clients = [16]
ratio = ["3:1"]           # prefill instances : decode workers; "0:1" is one worker that does both
sanitizer = ["off"]
"""

import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lineclear.base.errors import ConfigError

_RATIO = re.compile(r"(\d+):([1-9]\d*)")


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that are combined."""

    faults: tuple[tuple[str, ...], ...] = ((),)
    clients: tuple[int, ...] = (8,)
    ratio: tuple[str, ...] = ("1:1",)
    sanitizer: tuple[str, ...] = ("off",)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All cells and what they have in common."""

    name: str
    grid: Grid
    seed: int = 0
    requests: int = 200
    num_prompts: int = 64
    prompt_len: tuple[int, int] = (40, 240)
    max_tokens: int = 6
    leaving_share: float = 0.0
    longest_patience: float = 1.0
    options: tuple[str, ...] = ()

    def cells(self) -> Iterator["Cell"]:
        """Yield the grid's cells, in its order."""
        grid = self.grid
        for faults, clients, ratio, sanitizer in itertools.product(
            grid.faults, grid.clients, grid.ratio, grid.sanitizer
        ):
            prefill, decode = _numbers(ratio)
            yield Cell(faults, clients, prefill, decode, sanitizer)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to run the load."""

    faults: tuple[str, ...]
    num_clients: int
    num_prefill: int
    num_decode: int
    sanitizer: str

    @property
    def key(self) -> str:
        """Its name in figures and files."""
        faults = "+".join(self.faults) or "no_fault"
        ratio = f"{self.num_prefill}to{self.num_decode}"
        return f"{faults}_{self.num_clients}clients_{ratio}_{self.sanitizer}"


def read_plan(path: Path, known_faults: tuple[str, ...]) -> Plan:
    """Read a plan.

    Raises: ConfigError for what is no plan, naming the field.
    """
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        plan = msgspec.convert(raw, Plan)
    except OSError as error:
        raise ConfigError("PLAN", str(path), f"a file that can be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError("PLAN", str(path), str(error)) from None
    for faults in plan.grid.faults:
        for fault in faults:
            _require("faults", fault, fault in known_faults, f"of {', '.join(known_faults)}")
    for clients in plan.grid.clients:
        _require("clients", clients, clients >= 1, "at least 1")
    for ratio in plan.grid.ratio:
        _numbers(ratio)
    for sanitizer in plan.grid.sanitizer:
        _require("sanitizer", sanitizer, sanitizer in {"off", "sample", "full"}, "off, sample or full")
    _require("requests", plan.requests, plan.requests >= 1, "at least 1")
    _require("num_prompts", plan.num_prompts, plan.num_prompts >= 1, "at least 1")
    low, high = plan.prompt_len
    _require("prompt_len", [low, high], 1 <= low <= high, "two numbers of tokens, the first not above the second")
    _require("leaving_share", plan.leaving_share, 0 <= plan.leaving_share <= 1, "0 to 1")
    return plan


def _numbers(ratio: str) -> tuple[int, int]:
    match = _RATIO.fullmatch(ratio)
    if match is None:
        raise ConfigError("ratio", ratio, 'prefill:decode, as "3:1"')
    return int(match[1]), int(match[2])


def _require(field: str, value: object, ok: bool, allowed: str) -> None:
    if not ok:
        raise ConfigError(field, value, allowed)
