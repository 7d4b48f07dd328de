"""Measures by how much `lineclear replay` misses the times of requests, against a server that computes nothing.

    python -m bench.bench_replay_schedule [--rate N] [--seconds N] [--prompt-len N] [--json FILE]

Server and replay are processes of their own; on a machine whose cores are busy the figures hold that, too.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from lineclear.lab.files import TraceWriter
from lineclear.trace.events import Arrived, Ended, Header
from tests.e2e.processes import running

BLOCK_LEN = 64


def write_trace(path: Path, rate: float, seconds: float, prompt_len: int) -> None:
    """Requests at even times, each with a first half that all share."""
    writer = TraceWriter(path, Header(version=1, block_len=BLOCK_LEN, source="bench"))
    num_blocks = prompt_len // BLOCK_LEN
    for idx in range(int(rate * seconds)):
        own = range((idx + 1) * num_blocks, (idx + 1) * num_blocks + num_blocks - num_blocks // 2)
        blocks = (*range(num_blocks // 2), *own)
        writer.write(Arrived(at_s=idx / rate, request=str(idx), prompt_len=prompt_len, blocks=blocks))
        writer.write(Ended(request=str(idx), output_len=20))
    writer.finish()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_replay_schedule", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--prompt-len", type=int, default=8192)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lineclear-schedule-") as folder:
        trace = Path(folder) / "even.trace"
        write_trace(trace, arguments.rate, arguments.seconds, arguments.prompt_len)
        with running(["-m", "bench.replay.null_server"]) as server:
            url = server.wait_for(r"(http://\S+)")[1]
            command = ["replay", str(trace), "--against", url, "--out", str(Path(folder) / "outcomes.jsonl")]
            more = [] if arguments.json is None else ["--json", str(arguments.json)]
            return subprocess.run([sys.executable, "-m", "lineclear", *command, *more], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
