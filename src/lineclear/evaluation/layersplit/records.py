"""What was measured, as a file that grows: one point after the other, so that a run that was stopped goes on.

    point       one number of ranks, one kind, one length; both layouts
    rotation    every session's prompt of that length, with as much KV as the budget has room for
    spare       no more sessions than both layouts have room for, where the rotation of the first length has more

What is written is whole points, and the caches of a run that goes on are as empty as those of a new one: what a point
finds, its own first asking has brought.
"""

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from lineclear.base.errors import ConfigError
from lineclear.evaluation.layersplit.communication import Communication
from lineclear.evaluation.layersplit.setting import Budget, Setting
from lineclear.parallel.build import KvLayout

LEAST_CPU_SECONDS = 0.01
"""A tick of the kernel's count."""

Kind: TypeAlias = Literal["spare", "rotation"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One layout's part of a point: its measured prompts."""

    num_prompt_tokens: int
    num_hit_tokens: int
    num_computed_tokens: int
    """In all steps."""
    num_steps: int
    seconds: float
    """Of all prompts, each from its arrival until it was computed."""
    cpu_seconds: float
    """Of all ranks and their threads, until rank 0 has answered: what company on the machine changes least."""
    communication: Communication
    batch_bytes: dict[str, int]
    """What owners had to send, by "layer part"."""
    pool_bytes: int
    """What whole layers of the pool would have been."""

    @property
    def tokens_per_s(self) -> float:
        """Input throughput."""
        return self.num_prompt_tokens / self.seconds

    @property
    def hit_share(self) -> float:
        """Of the prompts' tokens."""
        return self.num_hit_tokens / self.num_prompt_tokens


class PointKey(msgspec.Struct, frozen=True):
    """Which point."""

    num_ranks: int
    kind: Kind
    length: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Both layouts, at one length."""

    key: PointKey
    num_sessions: int
    turns: dict[KvLayout, Turn]
    num_digests: int
    """Parts of layers of prompts that both layouts' rank 0 stores, compared bit for bit."""
    num_different: int
    load: float
    """Of the machine at the end: processes that want a core, one minute's mean."""

    @property
    def ratio(self) -> float:
        """Throughput, LayerSplit against replicated."""
        return self.turns["layersplit"].tokens_per_s / self.turns["replicated"].tokens_per_s

    @property
    def work_ratio(self) -> float:
        """Tokens for a second of a core, LayerSplit against replicated."""
        split, base = self.turns["layersplit"], self.turns["replicated"]
        rates = [turn.num_prompt_tokens / max(turn.cpu_seconds, LEAST_CPU_SECONDS) for turn in (split, base)]
        return rates[0] / rates[1]

    @property
    def has_equal_hits(self) -> bool:
        """Whether both layouts found the same: memory did not bind, and the ratio is that of the work."""
        return len({turn.num_hit_tokens for turn in self.turns.values()}) == 1

    @property
    def problems(self) -> list[str]:
        """What must not be, in words."""
        found: list[str] = []
        for layout, turn in self.turns.items():
            num_wanted = turn.num_prompt_tokens - self.num_sessions  # the last token of each is decode's
            if turn.num_hit_tokens + turn.num_computed_tokens != num_wanted:
                counts = f"{turn.num_hit_tokens} found and {turn.num_computed_tokens} computed"
                found.append(f"{layout}: {counts}, of {num_wanted}")
            wanted = turn.batch_bytes if layout == "layersplit" else {}
            if turn.communication.sent_bytes != wanted:
                found.append(f"{layout}: sent {turn.communication.sent_bytes}, the running batch's are {wanted}")
        if self.num_different or not self.num_digests:
            found.append(f"{self.num_different} of {self.num_digests} parts of prompts differ between the layouts")
        return [f"{self.key.num_ranks} ranks, {self.key.kind} {self.key.length}: {each}" for each in found]


def wanted_points(setting: Setting, budget: Budget, num_ranks: int) -> list[PointKey]:
    """The points of one number of ranks, in order."""
    first = setting.lengths[0]
    has_spare = 0 < budget.room_sessions(first) < setting.num_sessions
    spare = [PointKey(num_ranks, "spare", first)] if has_spare else []
    return spare + [PointKey(num_ranks, "rotation", length) for length in setting.lengths]


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance said when it was ready."""

    num_tokens: int
    kv_bytes: int
    """Of the heaviest rank."""
    staging_bytes: int


class Records(msgspec.Struct, kw_only=True):
    """All of a run."""

    setting: Setting
    rooms: dict[int, dict[KvLayout, Room]] = {}
    """By number of ranks."""
    points: list[Point] = []

    def find(self, key: PointKey) -> Point | None:
        """A point, if it was measured."""
        return next((point for point in self.points if point.key == key), None)

    @property
    def problems(self) -> list[str]:
        """Of all points."""
        return [problem for point in self.points for problem in point.problems]


def load_records(path: Path, setting: Setting) -> Records:
    """Read what a run has left; a new one where there is nothing.

    Raises: ConfigError if that run was set otherwise.
    """
    if not path.exists():
        return Records(setting=setting)
    try:
        records = msgspec.json.decode(path.read_bytes(), type=Records)
    except msgspec.DecodeError as error:
        raise ConfigError("resume", str(path), f"records of this version ({error})") from error
    if records.setting != setting:
        raise ConfigError("resume", str(setting), f"what {path} was measured with: {records.setting}")
    return records


def save_records(path: Path, records: Records) -> None:
    """Write all, or nothing: the file is always whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=1))
    temporary.replace(path)
