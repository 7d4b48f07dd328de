"""`lineclear` whose disk takes its time over each file of the cache: python -m tests.e2e.slow_disk serve ..."""

import sys
import time
from collections.abc import Sequence
from functools import partial

from lineclear.cli import serve
from lineclear.cli.main import main
from lineclear.cli.supervisor import Supervisor
from lineclear.engine import build_tiers
from lineclear.engine.disk_files import DiskFiles
from lineclear.kv.prefix_key import PrefixKey

FILE_SECONDS = 0.01


class SlowFiles(DiskFiles):
    """Files that are written one after the other, and slowly."""

    def write(self, key: PrefixKey, payload: Sequence[memoryview]) -> None:
        """Wait, then write."""
        if not self.exists(key):
            time.sleep(FILE_SECONDS)
        super().write(key, payload)


if __name__ == "__main__":
    serve.Supervisor = partial(Supervisor, program=(sys.executable, "-m", "tests.e2e.slow_disk"))
    build_tiers.DiskFiles = SlowFiles
    sys.exit(main(sys.argv[1:]))
