"""Every error that Lineclear raises on purpose.

LineclearError
├── UserError (a ValueError)      the user's mistake: names the field, the value and what is allowed
│   ├── ConfigError               in a flag, a file or the environment
│   ├── CheckpointError           in a model directory
│   ├── TraceError                in a trace, or a log that is to become one: names the line as well
│   └── RequestError              in a client's request; `code` is for programs
├── PeerError                     a remote process's nonsense: closes that peer and is counted
└── RankError                     a rank of this instance cannot go on with a pass: names the rank and its reason
    └── RankLostError             it is gone, or was not heard of in time: the instance's communicator is over

AssertionError
└── InvariantError                our own mistake: outside the tree above, so that nobody handles it by accident
"""

import reprlib

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 120
_SHOWN.maxother = 120
_SHOWN.maxlist = 8
_SHOWN.maxdict = 8


class LineclearError(Exception):
    """Anything that Lineclear reports to somebody else."""


class UserError(LineclearError, ValueError):
    """A value that cannot be used, with the name of its field and what is allowed instead."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(field, value, allowed)

    def __str__(self) -> str:
        return f"{self.field}: got {_SHOWN.repr(self.value)}, allowed: {self.allowed}"


class ConfigError(UserError):
    """A setting that cannot be used."""


class CheckpointError(UserError):
    """A model directory that cannot be loaded."""


class TraceError(UserError):
    """A row of a trace, or of a log that is to become one, that cannot be used.

    Args:
        line: its number, from 1.
    """

    def __init__(self, line: int, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.line = line

    def __str__(self) -> str:
        return f"line {self.line}: {super().__str__()}"


class RequestError(UserError):
    """A client's request that cannot be served as it stands."""

    def __init__(self, field: str, value: object, allowed: str, code: str = "invalid_value") -> None:
        super().__init__(field, value, allowed)
        self.code = code


class PeerError(LineclearError):
    """A message from another process that no correct peer would send."""


class RankError(LineclearError):
    """A rank of this instance cannot go on with what all ranks do together.

    Args:
        cp_rank: whose failure it is; every rank raises this error with the same one.
        reason: in that rank's words.
    """

    def __init__(self, cp_rank: int, reason: str) -> None:
        self.cp_rank = cp_rank
        self.reason = reason
        super().__init__(cp_rank, reason)

    def __str__(self) -> str:
        return f"cp_rank {self.cp_rank}: {self.reason}"


class RankLostError(RankError):
    """A rank is gone, or was not heard of within the deadline."""


class InvariantError(AssertionError):
    """A promise of our own code that does not hold."""
