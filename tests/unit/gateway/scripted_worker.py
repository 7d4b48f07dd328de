"""A worker that speaks the real protocol over a real link and says what a test tells it to."""

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from lineclear.config.components import LinkConfig
from lineclear.protocol import wire
from lineclear.protocol.drafts import DraftCounts
from lineclear.transport.endpoint import parse_endpoint
from lineclear.transport.gateway_link import GatewayLink

POLL_SECONDS = 0.005
WAIT_SECONDS = 20.0
"""How long a test waits for something that should happen at once, before it fails."""

Script = Callable[[wire.SubmitSequence], list[wire.SequenceOutput]]


def model_facts(**changes: object) -> wire.ModelFacts:
    """The facts of a small model."""
    facts: dict[str, object] = {
        "name": "tiny",
        "vocab_size": 600,
        "max_model_len": 4096,
        "eos_token_ids": [0],
        "block_size": 16,
        "num_blocks": 1024,
        "draft_tokens": 3,
        "max_running": 4,
    }
    return wire.ModelFacts(**(facts | changes))


def statistics(**changes: object) -> wire.WorkerStatistics:
    """Figures of a worker."""
    figures: dict[str, object] = {"num_running": 0, "num_waiting": 0, "num_receiving": 0}
    figures |= {"num_preemptions": 0, "num_damaged": 0}
    figures |= {"cached_prompt_tokens": 0, "prompt_tokens": 0, "output_tokens": 0}
    figures |= {"blocks_free": 1000, "blocks_held": 20, "blocks_quarantined": 4, "blocks_total": 1024}
    figures |= {"draft": DraftCounts(), "steps": 0, "step_seconds_total": 0.0}
    return wire.WorkerStatistics(**(figures | changes))


@dataclass
class ScriptedWorker:
    """A worker in a thread.

    Each submitted sequence is answered by `script`; without one, the test answers with `send`. Cancels are answered at
    once unless `answers_cancels` is off.
    """

    endpoint: str
    script: Script | None = None
    facts: wire.ModelFacts = field(default_factory=model_facts)
    worker_id: str = "worker-0"
    life: int = 1
    answers_cancels: bool = True
    figures: wire.WorkerStatistics | None = field(default_factory=statistics)
    invariants: wire.InvariantsChecked = field(default_factory=lambda: wire.InvariantsChecked(ok=True, detail=""))

    released_answer: wire.QuarantineReleased | None = None

    def __post_init__(self) -> None:
        self._commands: queue.Queue[wire.ToGateway | None] = queue.Queue()
        self.submitted: queue.Queue[wire.SubmitSequence] = queue.Queue()
        self.cancelled: queue.Queue[int] = queue.Queue()
        self.released: queue.Queue[wire.ReleaseQuarantine] = queue.Queue()
        self.refused: queue.Queue[str] = queue.Queue()
        self.drained = threading.Event()
        self._open: set[int] = set()
        hello = wire.WorkerHello(
            version=wire.WIRE_VERSION, worker_id=self.worker_id, life=self.life, pid=os.getpid(), model=self.facts
        )
        self._link = GatewayLink.connect(parse_endpoint(self.endpoint), hello, LinkConfig())
        self._thread = threading.Thread(target=self._run, name=f"{self.worker_id}-{self.life}")
        self._thread.start()

    def send(self, *outputs: wire.SequenceOutput) -> None:
        """Send outputs as one step."""
        self._commands.put(wire.StepOutputs(outputs=list(outputs)))

    def next_submitted(self) -> wire.SubmitSequence:
        """The next sequence that was submitted."""
        return self.submitted.get(timeout=WAIT_SECONDS)

    def next_cancelled(self) -> int:
        """The next sequence that was cancelled."""
        return self.cancelled.get(timeout=WAIT_SECONDS)

    def kill(self) -> None:
        """Close the link without another word."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except ConnectionError:
            pass
        finally:
            self._link.close()

    def _turn(self) -> bool:
        for message in self._link.poll(POLL_SECONDS):
            self._receive(message)
        while not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            if isinstance(command, wire.StepOutputs):
                self._open -= {output.sequence_id for output in command.outputs if output.finish_reason is not None}
            self._link.send(command)
        return True

    def _send_some(self, message: wire.ToGateway | None) -> None:
        """Send an answer; without one the worker stands still."""
        if message is not None:
            self._link.send(message)

    def _receive(self, message: wire.ToWorker) -> None:
        match message:
            case wire.SubmitSequence(sequence_id=sequence_id):
                self._open.add(sequence_id)
                self.submitted.put(message)
                for output in self.script(message) if self.script else ():
                    self.send(output)
            case wire.CancelSequence(sequence_id=sequence_id):
                self.cancelled.put(sequence_id)
                if self.answers_cancels and sequence_id in self._open:
                    self.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="cancelled"))
            case wire.Drain():
                self.drained.set()
                self._link.send(wire.Drained())
            case wire.QueryStatistics():
                self._send_some(self.figures)
            case wire.CheckInvariants():
                self._link.send(self.invariants)
            case wire.Refused(reason=reason):
                self.refused.put(reason)
            case wire.ReleaseQuarantine():
                self.released.put(message)
                self._send_some(self.released_answer)
