"""A process that writes blocks until it is killed: `python -m lineclear.testing.tiers.disk_writer SOURCE TARGET SEED`.

It takes the files of one directory, which are whole, and writes their contents into another with the product's own
`DiskFiles`, in random order, giving up some at random, for ever.
"""

import random
import sys
from pathlib import Path

from lineclear.engine.disk_files import DiskFiles
from lineclear.kv.disk_format import FINGERPRINT_BYTES, HEADER_BYTES
from lineclear.kv.prefix_key import PrefixKey

_FINGERPRINT_OFFSET = 24


def read_fingerprint(path: Path) -> bytes:
    """Whose file it is, by its own words."""
    return path.read_bytes()[_FINGERPRINT_OFFSET : _FINGERPRINT_OFFSET + FINGERPRINT_BYTES]


def main(source: Path, target: Path, seed: int) -> None:
    """Write until killed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    paths = sorted(source.rglob("*.kv"))
    files = DiskFiles(target, read_fingerprint(paths[0]))
    payloads = {PrefixKey(bytes.fromhex(path.stem)): path.read_bytes()[HEADER_BYTES:] for path in paths}
    print("writing", flush=True)
    while True:
        for key in rng.sample(sorted(payloads), len(payloads)):
            payload = memoryview(payloads[key])
            cut = rng.randrange(1, len(payload))
            files.write(key, [payload[:cut], payload[cut:]])
            if rng.random() < 0.1:
                files.delete(rng.choice(sorted(payloads)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
