"""Moves and effects in words.

Requests are A, B, ...; `e0.1` is the first attempt of decode life 0; `r1.0` is life 0 of rank 1.
"""

from collections.abc import Iterable
from typing import assert_never

from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import (
    Abort,
    HandoffMessage,
    LineClear,
    PrefillOrder,
    WritesDone,
    WritesFailed,
)
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.testing.explorer import Label
from lineclear.testing.handoff.world import Write

_SENTENCES = {
    "admit": "decode takes blocks for {} and orders its prefill",
    "give up": "{} is given up while it waits for blocks",
    "stop": "the deadline of {} passes",
    "leave": "the client of {} leaves",
    "finish": "{} is decoded to its end",
    "arrive": "arrives: {}",
    "start": "{} starts to prefill {}",
    "compute": "{0} computes token {2} of {1}",
    "stop computing": "{} stops computing {}",
    "prefill fails": "{} fails to compute {}",
    "forget": "{} forgets what is done, but for the newest {}",
    "post": "{} is posted",
    "never post": "{} is never posted, which is reported",
    "land": "{} lands",
    "write ends": "{} is reported as ended: {}",
    "write fails": "{} is reported as ended without success",
    "write unknown": "{} is reported as unknown",
    "late answer": "{} is reported late as ended: {}",
    "hear of life": "decode hears of {}",
    "hear of decode's end": "{} hears that older lives of decode are over",
    "rank crashes": "{} crashes, its next life begins",
    "decode crashes": "decode crashes, its next life begins",
    "fence": "{} is fenced",
    "revoke": "{}, which lives, is fenced",
    "start anew": "{} starts anew",
    "timer releases": "a timer ends the writers' holds of {}",
}


def say_script(script: Iterable[Label], broken: str | None) -> list[str]:
    """Return a script as numbered lines, the broken promise last."""
    lines = [f"{number:2}. {say(label)}" for number, label in enumerate(script, start=1)]
    return lines if broken is None else [*lines, f" ✗  {broken}"]


def say(label: Label) -> str:
    """Return a move as a clause."""
    word, *about = label
    return _SENTENCES[word].format(*(_name(thing, is_request=word in _OF_REQUESTS) for thing in about))


_OF_REQUESTS = ("admit", "give up", "stop", "leave", "finish")


def say_message(message: HandoffMessage) -> str:
    """Return a message with whom it is about."""
    about = f"{say_epoch(message.epoch)}, {say_peer(message.peer)}"
    match message:
        case PrefillOrder():
            return f"PrefillOrder({about})"
        case Abort():
            return f"Abort({about})"
        case WritesDone():
            return f"WritesDone({about})"
        case LineClear():
            return f"LineClear({about})"
        case WritesFailed():
            return f"WritesFailed({about}, {message.reason})"
        case _:
            assert_never(message)


def say_receiver_effect(effect: rx.ReceiverEffect) -> str:
    """Return what the decode worker is to do."""
    match effect:
        case rx.Send(message):
            return f"send {say_message(message)}"
        case rx.ReleaseWriter(epoch, peer):
            return f"end the writer's hold of {say_peer(peer)} for {say_epoch(epoch)}"
        case rx.Ready(epoch):
            return f"let {say_epoch(epoch)} decode"
        case rx.Failed(epoch, reason):
            return f"give {say_epoch(epoch)} its outcome: {reason}"
        case rx.Settled(epoch):
            return f"forget the receiver of {say_epoch(epoch)}"
        case _:
            assert_never(effect)


def say_sender_effect(effect: tx.SenderEffect) -> str:
    """Return what a rank is to do."""
    match effect:
        case tx.Send(message):
            return f"send {say_message(message)}"
        case tx.BeginPrefill(epoch):
            return f"begin to prefill {say_epoch(epoch)}"
        case tx.StopPrefill(epoch):
            return f"stop to prefill {say_epoch(epoch)}"
        case tx.PostWrite(epoch, write_id, start, end):
            return f"post write {write_id} of {say_epoch(epoch)}: tokens {start} to {end}"
        case tx.ReleaseSource(epoch):
            return f"end the reader's hold for {say_epoch(epoch)}"
        case _:
            assert_never(effect)


def say_epoch(epoch: Epoch) -> str:
    """Return an attempt's short name."""
    return f"e{epoch.life}.{epoch.number}"


def say_peer(peer: Peer) -> str:
    """Return a rank life's short name."""
    return f"r{peer.rank}.{peer.life}"


def _name(thing: object, *, is_request: bool) -> object:
    match thing:
        case Epoch():
            return say_epoch(thing)
        case Peer():
            return say_peer(thing)
        case Write():
            return _say_write(thing)
        case PrefillOrder() | Abort() | WritesDone() | LineClear() | WritesFailed():
            return say_message(thing)
        case _:
            return _say_number(thing, is_request=is_request)


def _say_write(write: Write) -> str:
    target = f"block {write.block_id} of memory {write.memory}"
    return f"write {write.write_id} of {say_peer(write.peer)} for {say_epoch(write.epoch)} into {target}"


def _say_number(thing: object, *, is_request: bool) -> object:
    if isinstance(thing, bool):
        return "well" if thing else "badly"
    return chr(ord("A") + thing) if is_request and isinstance(thing, int) else thing
