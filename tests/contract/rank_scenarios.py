"""What ranks do together in the communicator's contract; each returns what its rank has seen."""

import os
import signal
from collections.abc import Sequence

import torch
from torch import Tensor

from lineclear.base.errors import RankError
from lineclear.parallel.communicator import Communicator, Lane, Pending

Seen = list[object]


def never() -> None:
    """The filler of those who own nothing."""
    raise AssertionError("only the owner fills")


def seen_of(pending: Pending) -> tuple[str, int, str] | None:
    """How a transfer ended: None, or the error's class, rank and reason."""
    try:
        pending.wait()
    except RankError as error:
        return type(error).__name__, error.cp_rank, error.reason
    return None


def broadcast_value(communicator: Communicator, lane: Lane, owner: int, buffer: Tensor, value: float) -> Pending:
    def fill() -> None:
        buffer.fill_(value)

    return communicator.broadcast(lane, owner, buffer, fill if owner == communicator.rank else never)


def everybody_gets_the_owners_buffer(communicator: Communicator, device: torch.device) -> Seen:
    seen: Seen = []
    for owner in range(communicator.size):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            buffer = torch.zeros(5, 3, dtype=dtype, device=device)
            broadcast_value(communicator, Lane.LATENT, owner, buffer, owner + 1).wait()
            seen.append(bool((buffer == torch.full_like(buffer, owner + 1)).all()))
    return seen


def rows_arrive_in_the_order_of_ranks(communicator: Communicator, device: torch.device) -> Seen:
    counts = [3, 0, 2][: communicator.size]
    rows = torch.full((counts[communicator.rank], 4), float(communicator.rank), device=device)
    into = torch.full((sum(counts), 4), -1.0, device=device)
    communicator.gather(Lane.ROWS, rows, into, counts).wait()
    return [into[:, 0].tolist(), bool((into == into[:, :1]).all())]


def one_lane_keeps_its_order(communicator: Communicator, device: torch.device) -> Seen:
    buffers = [torch.zeros(1000, device=device) for _ in range(40)]
    pending = [
        broadcast_value(communicator, Lane.LATENT, number % communicator.size, buffer, number)
        for number, buffer in enumerate(buffers)
    ]
    for each in pending:
        each.wait()
    return [float(buffer.mean()) for buffer in buffers]


def lanes_do_not_mix(communicator: Communicator, device: torch.device) -> Seen:
    """Ranks begin the lanes' transfers in different orders."""
    lanes = list(Lane)
    mine = lanes[communicator.rank :] + lanes[: communicator.rank]
    buffers = {lane: torch.zeros(64, device=device) for lane in lanes}
    for turn in range(10):
        pending = [
            broadcast_value(communicator, lane, 0, buffers[lane], 10 * turn + lanes.index(lane)) for lane in mine
        ]
        for each in pending:
            each.wait()
        wrong = [lane.value for lane in lanes if float(buffers[lane].mean()) != 10 * turn + lanes.index(lane)]
        if wrong:
            return [turn, *wrong]
    return []


def an_owner_that_fails_is_named_and_the_next_transfer_works(communicator: Communicator, device: torch.device) -> Seen:
    buffer = torch.zeros(8, device=device)

    def fail() -> None:
        raise OSError("the load of layer 3 has failed")

    fill = fail if communicator.rank == 1 else never
    first = seen_of(communicator.broadcast(Lane.INDEX, 1, buffer, fill))
    second = seen_of(broadcast_value(communicator, Lane.INDEX, 1, buffer, 5.0))
    return [first, second, buffer.tolist()]


def a_rank_that_fails_is_named_in_its_gather(communicator: Communicator, device: torch.device) -> Seen:
    counts = [1] * communicator.size
    rows, into = torch.ones(1, 2, device=device), torch.zeros(len(counts), 2, device=device)
    error = RankError(0, "its pass has failed") if communicator.rank == 0 else None
    first = seen_of(communicator.gather(Lane.CONTROL, rows, into, counts, error))
    second = seen_of(communicator.gather(Lane.CONTROL, rows, into, counts))
    return [first, second, into.tolist()]


def a_lost_rank_is_an_error_everywhere(communicator: Communicator, device: torch.device, how: signal.Signals) -> Seen:
    """The last rank is gone after a first gather; transfers that others began and begin all end."""
    last = communicator.size - 1
    counts = [1] * communicator.size
    rows, into = torch.ones(1, 2, device=device), torch.zeros(len(counts), 2, device=device)
    seen: Seen = [seen_of(communicator.gather(Lane.CONTROL, rows, into, counts))]
    if communicator.rank == last:
        os.kill(os.getpid(), how)
    pending = [
        communicator.gather(Lane.ROWS, rows, into, counts),
        communicator.gather(Lane.ROWS, rows, into.clone(), counts),
        communicator.broadcast(Lane.LATENT, last, torch.zeros(1 << 22, device=device), never),
    ]
    seen += [_kind_and_rank(seen_of(each)) for each in pending]
    return seen


def a_killed_rank(communicator: Communicator, device: torch.device) -> Seen:
    return a_lost_rank_is_an_error_everywhere(communicator, device, signal.SIGKILL)


def a_stopped_rank(communicator: Communicator, device: torch.device) -> Seen:
    return a_lost_rank_is_an_error_everywhere(communicator, device, signal.SIGSTOP)


def _kind_and_rank(seen: tuple[str, int, str] | None) -> object:
    return None if seen is None else seen[:2]


def several(communicator: Communicator, device: torch.device) -> dict[str, Seen]:
    """All that needs no victim, one after the other over one communicator."""
    return {each.__name__: each(communicator, device) for each in SCENARIOS}


SCENARIOS = (
    everybody_gets_the_owners_buffer,
    rows_arrive_in_the_order_of_ranks,
    one_lane_keeps_its_order,
    lanes_do_not_mix,
    an_owner_that_fails_is_named_and_the_next_transfer_works,
    a_rank_that_fails_is_named_in_its_gather,
)


def expected(name: str, size: int) -> Seen:
    """What every rank must have seen."""
    counts: Sequence[int] = [3, 0, 2][:size]
    return {
        "everybody_gets_the_owners_buffer": [True] * 4 * size,
        "rows_arrive_in_the_order_of_ranks": [[float(r) for r, n in enumerate(counts) for _ in range(n)], True],
        "one_lane_keeps_its_order": [float(number) for number in range(40)],
        "lanes_do_not_mix": [],
        "an_owner_that_fails_is_named_and_the_next_transfer_works": [
            ("RankError", 1, "OSError: the load of layer 3 has failed"), None, [5.0] * 8
        ],
        "a_rank_that_fails_is_named_in_its_gather": [
            ("RankError", 0, "its pass has failed"), None, [[1.0, 1.0]] * size
        ],
    }[name]  # fmt: skip
