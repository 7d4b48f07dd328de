"""Readable transcripts: what the machines do in chosen scenarios, and the shortest failing script of every control.

`lineclear prove transcripts --dir DIR` writes them; tests compare them with those under review, as text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lineclear.base.errors import InvariantError
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff import sender as tx
from lineclear.testing.explorer import Move
from lineclear.testing.handoff.controls import FAILURE_CLASSES, GUARDS, Control
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.scenario import Budget, Scenario
from lineclear.testing.handoff.shells import Machines
from lineclear.testing.handoff.words import say, say_epoch, say_peer, say_receiver_effect, say_script, say_sender_effect
from lineclear.testing.handoff.world import World


@dataclass(frozen=True)
class Story:
    """One chosen run: each step is a move as `say` puts it, or its beginning."""

    name: str
    about: str
    scenario: Scenario
    steps: tuple[str, ...]


_ONE = Scenario("one rank, one request", num_requests=1)
_CHUNKS = replace(_ONE, num_tokens=2)

STORIES = (
    Story(
        "healthy",
        "Two ranks write a prompt of two chunks; the second chunk is computed while the first is on its way.",
        replace(_CHUNKS, num_ranks=2),
        (
            "decode takes blocks for A",
            "arrives: PrefillOrder(e0.1, r0.0)",
            "arrives: PrefillOrder(e0.1, r1.0)",
            "r0.0 starts",
            "r1.0 starts",
            "r0.0 computes token 0",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "r0.0 computes token 1",
            "write 1 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "write 1 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "write 1 of r0.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "arrives: WritesDone(e0.1, r0.0",
            "r1.0 computes token 0",
            "r1.0 computes token 1",
            "write 0 of r1.0 for e0.1 into block 0 of memory 0 is posted",
            "write 1 of r1.0 for e0.1 into block 0 of memory 0 is posted",
            "write 0 of r1.0 for e0.1 into block 0 of memory 0 lands",
            "write 0 of r1.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "write 1 of r1.0 for e0.1 into block 0 of memory 0 lands",
            "write 1 of r1.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "arrives: WritesDone(e0.1, r1.0",
            "A is decoded",
        ),
    ),
    Story(
        "cancelled_in_flight",
        "The deadline passes with a write in flight: the outcome comes at once, line clear when the write has ended.",
        _CHUNKS,
        (
            "decode takes blocks for A",
            "arrives: PrefillOrder",
            "r0.0 starts",
            "r0.0 computes token 0",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "the deadline of A",
            "arrives: Abort",
            "r0.0 computes token 1",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "arrives: LineClear",
        ),
    ),
    Story(
        "abort_overtakes_order",
        "An abort comes before its order: it is answered at once, and the order is refused when it comes.",
        _ONE,
        (
            "decode takes blocks for A",
            "the deadline of A",
            "arrives: Abort",
            "arrives: PrefillOrder",
            "arrives: LineClear",
        ),
    ),
    Story(
        "rank_crashes",
        "A rank crashes with a write posted: the blocks stay held until its old life is fenced, whatever comes before.",
        replace(_ONE, num_requests=2, budget=Budget(rank_crashes=1)),
        (
            "decode takes blocks for A",
            "arrives: PrefillOrder(e0.1, r0.0)",
            "r0.0 starts",
            "r0.0 computes",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "r0.0 crashes",
            "decode hears of r0.1",
            "arrives: Abort(e0.1, r0.0)",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "r0.0 is fenced",
            "decode takes blocks for B",
            "arrives: PrefillOrder(e0.2, r0.1)",
        ),
    ),
    Story(
        "unknown_write",
        "Nobody can tell whether a write has ended: line clear is withheld until the late answer.",
        replace(_ONE, budget=Budget(unknowns=1)),
        (
            "decode takes blocks for A",
            "arrives: PrefillOrder",
            "r0.0 starts",
            "r0.0 computes",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is reported as unknown",
            "arrives: WritesFailed",
            "arrives: Abort",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is reported late",
            "arrives: LineClear",
        ),
    ),
    Story(
        "decode_crashes",
        "Decode crashes: the gateway ends the request, the rank closes, the write lands in memory of the past.",
        replace(_ONE, num_requests=2, budget=Budget(decode_crashes=1)),
        (
            "decode takes blocks for A",
            "arrives: PrefillOrder(e0.1, r0.0)",
            "r0.0 starts",
            "r0.0 computes",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is posted",
            "decode crashes",
            "decode takes blocks for",
            "r0.0 hears that older lives",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 lands",
            "write 0 of r0.0 for e0.1 into block 0 of memory 0 is reported as ended: well",
            "arrives: LineClear(e0.1, r0.0)",
            "arrives: PrefillOrder(e1.1, r0.0)",
        ),
    ),
)


def write_transcripts(directory: Path) -> None:
    """Write every transcript into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in transcripts():
        (directory / name).write_text(text, encoding="utf-8")


def transcripts() -> Iterator[tuple[str, str]]:
    """Yield each transcript's file name and text."""
    for story in STORIES:
        yield f"handoff_{story.name}.txt", tell(story)
    yield "handoff_controls.txt", _tell_controls("One guard is taken out, and this happens.", GUARDS)
    yield "handoff_failure_classes.txt", _tell_controls("The published failure classes.", FAILURE_CLASSES)


def tell(story: Story) -> str:
    """Return what the machines do in a story.

    Raises: InvariantError if a step of it cannot happen.
    """
    journal = _Journal()
    machines = Machines(receiver_step=journal.step_receiver, sender_step=journal.step_sender)
    model = HandoffModel(story.scenario, machines=machines)
    world = model.start()
    lines = [story.about, ""]
    for number, step in enumerate(story.steps, start=1):
        move = _chosen(model, world, step)
        lines.append(f"{number:2}. {say(move.label)}")
        world = move.after()
        model.check(world)
        lines += journal.take()
    return "\n".join(lines) + "\n"


def _chosen(model: HandoffModel, world: World, step: str) -> Move[World]:
    possible = list(model.moves(world))
    for move in possible:
        if say(move.label).startswith(step):
            return move
    raise InvariantError(f"{step!r} cannot happen; what can: {[say(move.label) for move in possible]}")


def _tell_controls(title: str, controls: tuple[Control, ...]) -> str:
    lines = [title]
    for control in controls:
        found = control.run()
        lines += ["", f"{control.name}   [{control.scenario.name}]", *say_script(found.script, found.broken)]
    return "\n".join(lines) + "\n"


class _Journal:
    """Runs the production machines and notes what they do."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def take(self) -> list[str]:
        """Return what was noted since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def step_receiver(self, state: rx.Receiver, event: rx.ReceiverEvent) -> rx.Step:
        after, effects = rx.step(state, event)
        self._note(
            f"decode, {say_epoch(state.epoch)}",
            _say_receiver(after),
            map(say_receiver_effect, effects),
            is_idle=after == state,
        )
        return after, effects

    def step_sender(self, state: tx.Sender, event: tx.SenderEvent) -> tx.Step:
        after, effects = tx.step(state, event)
        self._note(say_peer(state.peer), _say_sender(after), map(say_sender_effect, effects), is_idle=after == state)
        return after, effects

    def _note(self, who: str, state: str, effects: Iterable[str], *, is_idle: bool) -> None:
        self._lines += [f"      {who}: {effect}" for effect in effects]
        self._lines.append(f"      {who} {'stays as it is' if is_idle else f'is now {state}'}")


def _say_receiver(state: rx.Receiver) -> str:
    unproven = ", ".join(say_peer(peer) for peer in state.unproven) or "nobody"
    return f"{state.phase}, unproven: {unproven}{', quarantined' if state.is_quarantined else ''}"


def _say_sender(state: tx.Sender) -> str:
    records = [_say_record(record) for record in state.records]
    records += [f"{say_epoch(answer.epoch)} done" for answer in state.done]
    newest = ", ".join(say_epoch(epoch) for epoch in state.newest)
    return f"{'; '.join(records) or 'without a record'} (newest: {newest})"


def _say_record(record: tx.Record) -> str:
    phase = "open" if record.closed_by is None else f"closed ({record.closed_by})"
    flying, unknown = sorted(record.flying), sorted(record.unknown)
    return f"{say_epoch(record.epoch)} {phase}, flying: {flying}, unknown: {unknown}"
