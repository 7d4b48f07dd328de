"""`lineclear worker` built with faults; no command and no option of the product leads here.

python -m lineclear.cli.lab_worker --arm NAME[,NAME] --fired FOLDER worker --worker-id NAME --join ...
"""

import argparse
import sys
from pathlib import Path

from lineclear.base.errors import LineclearError
from lineclear.cli import worker
from lineclear.cli.exit_codes import EXIT_USER_ERROR
from lineclear.testing.faults.catalogue import FAULTS, making_of
from lineclear.testing.faults.firings import Firings


def main(argv: list[str]) -> int:
    """Build the worker and let it serve."""
    parser = argparse.ArgumentParser(prog="python -m lineclear.cli.lab_worker", description=__doc__)
    parser.add_argument("--arm", default="", help=f"faults, of {', '.join(FAULTS)}")
    parser.add_argument("--fired", type=Path, required=True, help="folder for what fires")
    parser.add_argument("--seed", type=int, default=0)
    group = parser.add_subparsers(required=True)
    worker.add_arguments(group.add_parser("worker"))
    arguments = parser.parse_args(argv)
    try:
        firings = Firings(arguments.fired, arguments.worker_id or "worker")
        making = making_of([name for name in arguments.arm.split(",") if name], firings, arguments.seed)
        return worker.run_alone(arguments, making)
    except LineclearError as error:
        print(f"lineclear: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
