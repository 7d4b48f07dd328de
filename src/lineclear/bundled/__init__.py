"""What ships inside the package: the checkpoint `lineclear-tiny` and the edit tasks that measure it."""

from pathlib import Path

CHECKPOINTS = {"lineclear-tiny": "lineclear_tiny"}


def checkpoint_path(name: str = "lineclear-tiny") -> Path:
    """The directory of the bundled Hugging Face checkpoint called `name`."""
    if name not in CHECKPOINTS:
        raise ValueError(f"name: {name!r} is not a bundled checkpoint; there is {', '.join(CHECKPOINTS)}")
    return Path(__file__).parent / CHECKPOINTS[name]
