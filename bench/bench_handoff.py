"""Measures handoffs between real processes: how fast, how hidden, what protection and deciding cost, how soon given up.

Times are of this machine and what else it does; what is compared took turns in one run. On a busy machine read the
figures that count CPU time.

    python -m bench.bench_handoff [--only NAME ...] [--mover shm|nixl] [--tokens N] [--rounds N] [--json FILE]
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.handoff.cancels import cancel_to_free
from bench.handoff.control import control_cpu
from bench.handoff.protection import protection_cost
from bench.handoff.threshold import threshold
from bench.handoff.transfer import layouts, real
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.transport.movers.kinds import MoverKind

Measurement = Callable[[], Iterator[Figure]]


def measurements(mover: MoverKind, num_tokens: int, num_rounds: int) -> dict[str, Measurement]:
    """Every measurement by its name."""
    return {
        "transfer": lambda: real(mover, num_tokens, num_rounds),
        "layouts": lambda: layouts(mover, num_tokens, num_rounds=5, num_mixing=150),
        "protection": protection_cost,
        "cancels": cancel_to_free,
        "control": control_cpu,
        "threshold": threshold,
    }


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_handoff", description=__doc__)
    names = list(measurements("shm", 0, 0))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--mover", choices=("shm", "nixl"), default="shm", help="of transfer and layouts")
    parser.add_argument("--tokens", type=int, default=32_768, help="length of the prompt of transfer and layouts")
    parser.add_argument("--rounds", type=int, default=1, help="of transfer: prompts that are really computed")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    chosen = measurements(arguments.mover, arguments.tokens, arguments.rounds)
    print_figures((figure for name in arguments.only for figure in chosen[name]()), arguments.json)


if __name__ == "__main__":
    main()
