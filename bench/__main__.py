"""Prints the speed figures, one `name: value unit` line each."""

import argparse
from pathlib import Path

from bench.speed import Speed
from lineclear.evaluation.figures import print_figures


def main() -> None:
    """Run the chosen figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these only; an unknown name lists all")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides")
    arguments = parser.parse_args()
    measurements = Speed(num_threads=arguments.threads).figures
    names = arguments.only or list(measurements)
    unknown = set(names) - set(measurements)
    if unknown:
        parser.error(f"--only: no figure {sorted(unknown)}; there are {', '.join(measurements)}")
    print_figures((figure for name in names for figure in measurements[name]()), arguments.json)


if __name__ == "__main__":
    main()
