"""The proof that a fault fired: a file for each worker and fault, one byte longer each time."""

import logging
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


class Firings:
    """Counts what fires in one worker.

    Args:
        folder: of the run; whoever armed the faults reads it with `read_firings`.
        worker_id: part of the files' names.
    """

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._told: set[str] = set()

    def counter(self, fault: str) -> Callable[[], None]:
        """What the fault calls each time; any thread may."""
        path = self._folder / f"{self._worker_id}.{fault}"

        def fire() -> None:
            with path.open("ab") as file:
                file.write(b".")
            if fault not in self._told:
                self._told.add(fault)
                logger.warning("the lab's fault %s has fired for the first time", fault)

        return fire
