"""Requests of real coding agents to replay: their prefix structure and order; tokens are made up, and fewer."""

import json
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_SIZE = 16
KV_BYTES_PER_TOKEN = 5184
"""Of `lineclear-tiny` in fp32, the draft layer's cache included."""
TRACE_BLOCK_LEN = 64
"""Real tokens of one hash id."""
REAL_MAX_LEN = 48_000
"""Real tokens of the longest prompt that is replayed."""


@dataclass(frozen=True)
class Cut:
    """How much of the recording is replayed."""

    scale: int = 16
    """Real tokens for one of the replay."""
    num_sessions: int = 8
    max_requests: int = 12
    """Of one session; the real ones go on for hundreds."""


@dataclass(frozen=True)
class Replay:
    """Prompts in the order in which they come."""

    prompts: list[list[int]]
    sessions: list[int]
    """Whose they are, by number."""
    working_set_tokens: int
    """Of the longest prompts of all sessions together."""

    def pool_tokens(self, ratio: int) -> int:
        """A device pool that the working set exceeds so many times, but for the longest prompt, which must fit."""
        return max(self.working_set_tokens // ratio, max(map(len, self.prompts)) + 4 * BLOCK_SIZE)


def archive_path(data: str) -> Path:
    """Where `LINECLEAR_DATA` has the recording."""
    return Path(data) / "data/claude-code-sessions/sessions.tar.xz"


def load_replay(path: Path, cut: Cut = Cut()) -> Replay:
    """Read sessions, scale them down, and put their requests in the order of their times."""
    timed: list[tuple[float, int, list[int]]] = []
    working_set, num_sessions = 0, 0
    for number, trace in enumerate(_traces(path, 4 * cut.num_sessions)):
        requests = [each for each in trace["requests"] if each.get("hash_ids")][: cut.max_requests]
        prompts = [(each["t"], _tokens(number, each["hash_ids"], cut.scale)) for each in requests]
        prompts = [(at, prompt) for at, prompt in prompts if BLOCK_SIZE < len(prompt) <= REAL_MAX_LEN // cut.scale]
        if len(prompts) < cut.max_requests // 2 or num_sessions == cut.num_sessions:
            continue
        num_sessions += 1
        timed += [(at, number, prompt) for at, prompt in prompts]
        working_set += max(len(prompt) for _, prompt in prompts)
    timed.sort(key=lambda each: each[0])
    return Replay([prompt for *_, prompt in timed], [number for _, number, _ in timed], working_set)


def _traces(path: Path, count: int) -> list[dict[str, Any]]:
    with tarfile.open(path) as archive:
        members = sorted((each for each in archive if each.isfile()), key=lambda each: each.name)[:count]
        return [json.load(archive.extractfile(member)) for member in members]  # type: ignore[arg-type]


def _tokens(session: int, hash_ids: list[int], scale: int) -> list[int]:
    """Some tokens for each hash id, the same for the same id of a session."""
    tokens: list[int] = []
    for hash_id in hash_ids:
        rng = random.Random(session * 1_000_003 + hash_id)
        tokens += [rng.randrange(1, 1000) for _ in range(TRACE_BLOCK_LEN // scale)]
    return tokens
