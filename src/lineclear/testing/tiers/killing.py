"""Kills writers of the disk tier at random moments; whoever comes next finds whole files alone, and right answers."""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lineclear.bundled import checkpoint_path
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.disk_files import DiskFiles
from lineclear.testing.tiers.disk_writer import read_fingerprint
from lineclear.testing.tiers.trial import Answer, Trial
from lineclear.testing.tiers.workload import make_workload

KILLS_BETWEEN_RESTARTS = 20
LONGEST_SECONDS = 0.15
"""That a writer is left before it is killed: some dozens of files."""


@dataclass(frozen=True, slots=True)
class Killings:
    """What was found after writers were killed."""

    num_kills: int
    num_files: int
    """Found after kills and compared, all together."""
    num_temporary: int
    """Files that a kill has left unfinished."""
    num_broken: int
    """Files that are not, byte for byte, what was written."""
    num_answers: int
    """Asked of engines that were started on the directory."""
    num_wrong_answers: int
    disk_hit_tokens: int
    """That these answers took from disk."""

    @property
    def is_as_expected(self) -> bool:
        """Nothing broken, and there was something to break."""
        return not self.num_broken and not self.num_wrong_answers and self.num_files > 0 and self.disk_hit_tokens > 0


def kill_writers(num_kills: int, seed: int = 0) -> Killings:
    """Kill so many writers, one after the other, and start an engine on what they have left now and then."""
    with tempfile.TemporaryDirectory(prefix="lineclear-kills-") as folder:
        return _Run(Path(folder), seed).run(num_kills)


class _Run:
    def __init__(self, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self._source, self._target = folder / "source", folder / "target"
        self._prompts = make_workload(seed, num_requests=4, num_sessions=4, start_len=320, max_len=480).prompts
        self._expected = self._ask(self._source)[0]
        paths = list(self._source.rglob("*.kv"))
        self._contents = {path.name: path.read_bytes() for path in paths}
        self._files = DiskFiles(self._target, read_fingerprint(paths[0]))

    def run(self, num_kills: int) -> Killings:
        found = broken = temporary = wrong = answers = hits = 0
        for number in range(1, num_kills + 1):
            self._kill_one(number)
            temporary += sum(1 for _ in self._target.rglob("*.tmp"))
            for content, expected in self._compare():
                found += 1
                broken += content != expected
            if number % KILLS_BETWEEN_RESTARTS == 0 or number == num_kills:
                given, num_tokens = self._ask(self._target)
                answers += len(given)
                hits += num_tokens
                wrong += sum(answer != expected for answer, expected in zip(given, self._expected, strict=True))
        return Killings(num_kills, found, temporary, broken, answers, wrong, hits)

    def _kill_one(self, number: int) -> None:
        command = [sys.executable, "-m", "lineclear.testing.tiers.disk_writer"]
        arguments = [str(self._source), str(self._target), str(number)]
        with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            time.sleep(self._rng.random() * LONGEST_SECONDS)
            process.kill()

    def _compare(self) -> Iterator[tuple[bytes, bytes]]:
        for each in self._files.scan():
            path = self._files.path(each.key)
            yield path.read_bytes(), self._contents[path.name]

    def _ask(self, directory: Path) -> tuple[list[Answer], int]:
        """Answers of an engine that starts on a directory, and how many tokens it took from there."""
        cache = CacheConfig(host_cache_gib=0.05, disk_cache_dir=str(directory), prefetch_policy="wait")
        config = EngineConfig(max_total_tokens=3200, draft_tokens=3, max_batch_tokens=512)
        engine = build_engine(config, checkpoint_path(), cache=cache)
        answers = Trial(engine, self._prompts, seed=0, guests=False).run()
        tiers = engine.statistics().scheduler.tiers
        engine.close()
        return answers, 0 if tiers is None else tiers.disk_hit_tokens
