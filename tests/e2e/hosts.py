"""Another host, as far as one machine can have two: a network namespace with addresses of its own.

Needs the right to make network namespaces. What gets lost is lost where it arrives, by a filter of a few instructions
that asks the kernel for a random number: the sender is not told, the interfaces stay up, and `netem`, which not every
kernel has, is not needed.
"""

import itertools
import os
import re
import subprocess
from enum import Enum

_numbers = itertools.count()

_DROP, _PASS = 2, 2**32 - 1
_LOAD_RANDOM = f"32 0 0 {2**32 - 4096 + 56}"


class Direction(Enum):
    """Seen from here."""

    IN = "in"
    OUT = "out"


BOTH = (Direction.IN, Direction.OUT)


class OtherHost:
    """A namespace that one pair of virtual interfaces leads to."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError, CalledProcessError: This machine, or this user, cannot.
        """
        unique = f"{os.getpid()}{chr(ord('a') + next(_numbers) % 26)}"
        self.name = f"lineclear-{unique}"
        network = f"10.213.{os.getpid() % 256}"
        self.here, self.there = f"{network}.1", f"{network}.2"
        self.our_device, self.their_device = f"lc{unique}0"[-15:], f"lc{unique}1"[-15:]
        _run("ip", "netns", "add", self.name)
        try:
            self._connect()
        except (OSError, subprocess.CalledProcessError):
            self.remove()
            raise

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another one there."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self.lose(1.0)

    def mend(self) -> None:
        """Everything gets through again."""
        self.lose(0.0)

    def lose(self, share: float, directions: tuple[Direction, ...] = BOTH) -> None:
        """From now on lose that share of what arrives, here and there, or at one end only."""
        for direction, where in ((Direction.IN, self._here), (Direction.OUT, self._there)):
            device = where[-1]
            namespace = where[:-1]
            _run("tc", *namespace, "filter", "del", "dev", device, "ingress")
            if share and direction in directions:
                program = ("filter", "add", "dev", device, "ingress", "bpf", "da", "bytecode", _program(share))
                _run("tc", *namespace, *program)

    def num_lost(self) -> int:
        """Packets that were lost so far."""
        return sum(_num_dropped(where[:-1], where[-1]) for where in (self._here, self._there))

    def remove(self) -> None:
        """Take it away, the interfaces too."""
        _run("ip", "netns", "del", self.name)

    @property
    def _here(self) -> tuple[str, ...]:
        return (self.our_device,)

    @property
    def _there(self) -> tuple[str, ...]:
        return ("-n", self.name, self.their_device)

    def _connect(self) -> None:
        _run(
            "ip", "link", "add", self.our_device, "type", "veth", "peer", "name", self.their_device, "netns", self.name
        )
        _run("ip", "address", "add", f"{self.here}/30", "dev", self.our_device)
        _run("ip", "link", "set", self.our_device, "up")
        for words in (
            ("address", "add", f"{self.there}/30", "dev", self.their_device),
            ("link", "set", self.their_device, "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", self.name, *words)
        for where in (self._here, self._there):
            _run("tc", *where[:-1], "qdisc", "add", "dev", where[-1], "clsact")


def _program(share: float) -> str:
    """Classic BPF: drop if a random number of 32 bits is below the bound."""
    if share >= 1:
        return f"1,6 0 0 {_DROP}"
    bound = int(share * 2**32)
    return f"4,{_LOAD_RANDOM},53 1 0 {bound},6 0 0 {_DROP},6 0 0 {_PASS}"


def _num_dropped(namespace: tuple[str, ...], device: str) -> int:
    shown = _run("tc", *namespace, "-s", "qdisc", "show", "dev", device, "clsact")
    return sum(map(int, re.findall(r"dropped (\d+)", shown)))


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
