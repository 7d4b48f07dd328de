"""Tells a checkpoint from others without reading all of it."""

import hashlib
from pathlib import Path

SAMPLES_OF_A_FILE = 64
SAMPLE_BYTES = 4096
"""Hashing all weights of a large model would take minutes; samples tell two trainings apart."""


def model_digest(model_dir: Path) -> str:
    """Tell a checkpoint from others: its configuration, and sizes and samples of its weights, headers included."""
    digest = hashlib.sha256((model_dir / "config.json").read_bytes())
    for path in sorted(model_dir.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for sample in range(SAMPLES_OF_A_FILE):
                file.seek(size * sample // SAMPLES_OF_A_FILE)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
