"""Decode without the rule that blocks wait for a proof: what the rule is there for comes out."""

from lineclear.kv.pool import Holder
from lineclear.protocol.handoff import receiver as rx
from lineclear.schedule.holdings import Holdings
from lineclear.worker.decode_desk import DecodeDesk

_end_remote_write = Holdings.end_remote_write


class HastyDesk(DecodeDesk):
    """Takes news for proof: blocks are free as soon as an attempt has failed."""

    def _perform(self, attempt: object, effect: rx.ReceiverEffect) -> None:
        super()._perform(attempt, effect)
        if isinstance(effect, rx.Failed):
            for peer in attempt.receiver.unproven:
                super()._perform(attempt, rx.ReleaseWriter(effect.epoch, peer))


def end_remote_write_once(holdings: Holdings, writer: Holder) -> None:
    """Stands for `Holdings.end_remote_write`: the proof that comes afterwards has nothing left to end."""
    if writer in holdings._remote:
        _end_remote_write(holdings, writer)
