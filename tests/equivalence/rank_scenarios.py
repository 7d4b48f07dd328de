"""What each rank does in a process of its own: an engine a rank, which plan alike because they are asked alike."""

import os
import signal

import torch

from lineclear.base.errors import RankLostError
from lineclear.engine.build import build_parts, engine_of
from lineclear.engine.engine import Engine
from lineclear.parallel.build import KvLayout, RankConfig, RankMaking
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.meter import Happening, Meter, Span
from tests.equivalence.rank_engines import ENGINE, STAGING_BYTES, Answer, ask, ask_rounds, checkpoint, rounds

VICTIM = 1
VICTIMS_LAST_LAYER = 2


def build(communicator: Communicator, kv_layout: KvLayout, meter: Meter) -> Engine:
    ranks = RankConfig(kv_layout=kv_layout, staging_bytes=STAGING_BYTES)
    making = RankMaking(ranks, ENGINE, checkpoint(), communicator, meter)
    return engine_of(build_parts(ENGINE, checkpoint(), pass_making=making), ENGINE)


def answer(kv_layout: KvLayout, communicator: Communicator, _device: torch.device) -> list[list[Answer]]:
    return ask_rounds(build(communicator, kv_layout, Meter()))


class Ending:
    """A span sink that ends or stops its process in the middle of a pass, once it is armed."""

    def __init__(self, how: signal.Signals) -> None:
        self._how = how
        self.is_armed = False

    def __call__(self, span: Span) -> None:
        if self.is_armed and span.happening is Happening.COMPUTE and span.layer == VICTIMS_LAST_LAYER:
            os.kill(os.getpid(), self._how)


def lose_one(
    kv_layout: KvLayout, how: signal.Signals, communicator: Communicator, _device: torch.device
) -> tuple[str, int] | None:
    """What a rank is told when the victim is gone in the middle of a pass."""
    ending = Ending(how)
    engine = build(communicator, kv_layout, Meter(ending))
    ask(engine, rounds()[0])
    ending.is_armed = communicator.rank == VICTIM
    try:
        ask(engine, rounds()[1], 100)
    except RankLostError as error:
        return type(error).__name__, error.cp_rank
    return None
