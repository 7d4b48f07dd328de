"""Requests to workers, outputs back, and what happens when a worker is lost in between.

    submit ──▶ placed ──outputs──▶ every choice has its ending
                  │ worker lost
                  ├── nothing was delivered, attempts left ──▶ Restarted ──▶ placed again, or waiting for a worker
                  ├── otherwise ──▶ Failed
                  │ a choice is broken
                  └── Broken ──▶ its reader says what was sent ──▶ placed again, without caches, or an error

Owns the control links. Which worker is chosen is `routing`'s to say; here it is told what happens to each sequence.
Everything runs on the event loop, and nothing here blocks.

Invariants:
1. A choice gets outputs of its current attempt only: each attempt is a sequence of its own.
2. Each `SubmitSequence` that was sent is waited for until its final output or until its worker is lost, also when
   nobody is interested any more: a worker's room is only free when the worker says so.
3. Once something was delivered to the client, a generation is never restarted; a choice that is broken then is
   continued behind what was delivered, or the generation fails.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from lineclear.base.ids import WorkerId
from lineclear.config.components import ServeConfig
from lineclear.gateway.accepted import Attempt, Broken, Failed, Generation, Output, Restarted
from lineclear.gateway.errors import ApiError, GenerationError, OverloadedError, UnavailableError, refuse
from lineclear.gateway.generation import GenerationRequest
from lineclear.gateway.guard_book import GuardBook, GuardOutcome, GuardRecord, GuardStatistics
from lineclear.gateway.worker_questions import WorkerQuestions
from lineclear.gateway.worker_table import Worker, WorkerTable
from lineclear.protocol import wire
from lineclear.protocol.handoff.hello import differences
from lineclear.protocol.roles import Role
from lineclear.protocol.verdicts import Verdict
from lineclear.routing.breaker import BreakerRules, BreakerState, Ending
from lineclear.routing.budget import BudgetStatistics
from lineclear.routing.candidates import Ask, Why
from lineclear.routing.choice import ChoiceRules
from lineclear.routing.retries import BrokenChoice, GiveUp, Limit, RetryRules, decide
from lineclear.routing.router import Room, Router, RouterRules, Ticket, WorkerHealth
from lineclear.transport.endpoint import Endpoint
from lineclear.transport.worker_links import LinkEvent, LinkId, WorkerConnected, WorkerLinks, WorkerLost, WorkerMessage

logger = logging.getLogger(__name__)

OnWorkersChanged: TypeAlias = Callable[[list[str], list[str]], None]

MAX_ATTEMPTS = 3
"""How often one request is begun. A request that ends three workers is the reason, not the victim."""


@dataclass(slots=True, eq=False)
class _Placed:
    """A sequence at a worker.

    `is_complete`: its answer is whole, whatever the worker still says of it. `was_observed`: the guard saw something in
    it and let it go on, which says nothing of the worker: the model may write so.
    """

    generation: Generation
    attempt: Attempt
    ticket: Ticket
    num_tokens: int = 0
    is_complete: bool = False
    was_observed: bool = False


@dataclass(eq=False)
class _Waiting:
    """Attempts of one request that begin together once a worker has room, and until when they wait."""

    generation: Generation
    attempts: tuple[Attempt, ...]
    give_up: asyncio.TimerHandle


@dataclass(frozen=True)
class DispatchStatistics:
    """Totals since start, apart from the first two."""

    num_sequences: int
    num_waiting_for_worker: int
    num_restarts: int
    num_unknown_outputs: int
    num_workers_lost: int
    num_malformed_links: int
    num_placed: dict[tuple[str, Why], int]
    """Sequences by worker and by what decided that they went there."""
    num_breaker_changes: dict[tuple[str, BreakerState], int]
    """By worker and new state."""
    health: list[WorkerHealth]
    budget: BudgetStatistics
    guard: GuardStatistics


class Dispatcher:
    """Chooses workers and carries messages.

    Args:
        config: the whole configuration.
        model_digest: of the model that the gateway reads texts for; empty: any.
        on_workers_changed: told which workers take requests and which compute prompts for them, whenever that changes.
    """

    def __init__(self, config: ServeConfig, model_digest: str, on_workers_changed: OnWorkersChanged) -> None:
        self._model_digest = model_digest
        self._start_timeout_seconds = config.gateway.start_timeout_seconds
        self._links = WorkerLinks(config.link, self._on_event)
        self._table: WorkerTable[LinkId] = WorkerTable(config.engine.max_waiting)
        self.questions = WorkerQuestions(self._table, self._links)
        self._router = Router(_router_rules(config))
        self._now = time.monotonic
        self.guard_book = GuardBook()
        self._retry_rules = _retry_rules(config)
        self._placed: dict[int, _Placed] = {}
        self._waiting: list[_Waiting] = []
        self._next_id = itertools.count(1)
        self._facts: wire.ModelFacts | None = None
        self._is_draining = False
        self._on_workers_changed = on_workers_changed
        self._num_restarts = 0
        self._num_unknown_outputs = 0
        self._num_workers_lost = 0
        self._num_placed: Counter[tuple[str, Why]] = Counter()
        self._num_breaker_changes: Counter[tuple[str, BreakerState]] = Counter()

    @property
    def facts(self) -> wire.ModelFacts | None:
        """What the last worker that connected said of its model; `None` before the first."""
        return self._facts

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be accepted, room provided."""
        return self._table.has_serving and not self._is_draining

    @property
    def workers(self) -> list[Worker]:
        """The connected workers."""
        return list(self._table.workers.values())

    def statistics(self) -> DispatchStatistics:
        """The counts."""
        return DispatchStatistics(
            num_sequences=len(self._placed),
            num_waiting_for_worker=len(self._waiting),
            num_restarts=self._num_restarts,
            num_unknown_outputs=self._num_unknown_outputs,
            num_workers_lost=self._num_workers_lost,
            num_malformed_links=self._links.statistics().num_malformed,
            num_placed=dict(self._num_placed),
            num_breaker_changes=dict(self._num_breaker_changes),
            health=self._router.health(self._now()),
            budget=self._router.budget_statistics(),
            guard=self.guard_book.statistics(),
        )

    async def listen(self, endpoint: Endpoint) -> Endpoint:
        """Accept workers; returns the endpoint they can reach."""
        return await self._links.listen(endpoint)

    def submit(self, request: GenerationRequest) -> Generation:
        """Accept a request, or refuse it before anything was promised to the client.

        Raises:
            UnavailableError: The server is draining, or has no worker.
            OverloadedError: Everything is full.
            InvalidRequestError: It has more choices than any worker takes.
        """
        self.refuse_unavailable()
        num_choices = len(request.choices)
        if num_choices > self._table.most_capacity:
            allowed = f"at most {self._table.most_capacity}: more are never served at once"
            raise refuse(request.choices_param, f"{num_choices} choices", allowed)
        generation = Generation(request, self._now())
        if self._waiting or not self._try_place(generation, generation.first_attempts()):
            retry_after = self._router.retry_after_seconds(self._now(), num_ahead=num_choices + len(self._waiting))
            raise OverloadedError("the server is full; try again later", None, "server_overloaded", retry_after)
        self._router.budget.add_request()
        return generation

    def read_ahead(self, request: GenerationRequest) -> None:
        """Make what choosing a worker takes of the prompt; in any thread."""
        if self._router.reads_prompts:
            _ = request.prompt_names

    def refuse_unavailable(self) -> None:
        """Refuse a request that could not be accepted whatever it says.

        Raises:
            UnavailableError: The server is draining, or has no worker.
        """
        if self._is_draining:
            raise UnavailableError("the server is shutting down", None, "server_draining")
        if not self._table.has_serving:
            raise UnavailableError("no worker is ready; try again later", None, "no_worker")

    def close(self, generation: Generation) -> None:
        """The reader is done with a generation: whatever still runs of it is cancelled."""
        if generation.is_closed:
            return
        generation.is_closed = True
        for history in generation.histories:
            self.guard_book.settle(history, GuardOutcome.UNFINISHED)
        self._stop_waiting(generation)
        for sequence_id in generation.sequence_ids:
            self._cancel_sequence(sequence_id)

    def cancel_choice(self, generation: Generation, choice_idx: int) -> None:
        """End one choice, whose answer is complete for other reasons than the worker's."""
        for sequence_id in generation.sequence_ids:
            placed = self._placed[sequence_id]
            if placed.attempt.choice_idx == choice_idx:
                placed.is_complete = True
                self._cancel_sequence(sequence_id)

    def begin_again_elsewhere(
        self, generation: Generation, choice_idx: int, sent_token_ids: list[int], num_lost_tokens: int
    ) -> None:
        """A choice is broken, and its reader has gone back to what the client was sent of it: the next attempt.

        Raises:
            GenerationError: There is none.
        """
        history = generation.histories[choice_idx]
        history.num_lost_tokens += num_lost_tokens
        record = history.broken[-1]
        broken = BrokenChoice(
            action="fail" if record.verdict.action == "fail" else "retry",
            num_attempts=len(history.broken),
            num_lost_tokens=history.num_lost_tokens,
            seconds=self._now() - generation.accepted_at,
            has_sent=bool(sent_token_ids),
        )
        decision = decide(broken, self._retry_rules, self._router.budget.try_take)
        self.guard_book.follow(history, decision, len(sent_token_ids))
        logger.warning(
            "guard request=%s choice=%d attempt=%d worker=%s prefill=%s kind=%s detector=%s tokens=%d sent=%d then=%s",
            *(generation.request.request_id, choice_idx, record.attempt, record.worker_id),
            *(record.verdict.prefill_id or "-", record.verdict.kind, record.verdict.detector),
            *(record.verdict.num_tokens, len(sent_token_ids), record.follows),
        )
        if isinstance(decision, GiveUp):
            message = f"the answer went wrong ({record.verdict.kind}), and {_NO_RETRY[decision.limit]}"
            raise GenerationError(message, None, "broken_answer")
        attempt = generation.next_attempt(choice_idx, sent_token_ids, is_last=decision.is_last)
        self._wait_for_worker(generation, (attempt,), "no worker had room for another attempt")
        self._place_waiting()

    def finish_choice(self, generation: Generation, choice_idx: int) -> None:
        """A choice has its ending, whichever attempt it came from."""
        self.guard_book.finish(generation.histories[choice_idx])

    def begin_drain(self) -> None:
        """Accept nothing more."""
        self._is_draining = True

    def fail_all(self, error: ApiError) -> None:
        """End every open request with an error."""
        generations = {id(placed.generation): placed.generation for placed in self._placed.values()}
        generations |= {id(waiting.generation): waiting.generation for waiting in self._waiting}
        for generation in generations.values():
            self._stop_waiting(generation)
            self._fail(generation, error)

    async def stop(self) -> None:
        """Close the links."""
        self._is_draining = True
        await self._links.close()

    def _try_place(self, generation: Generation, attempts: Sequence[Attempt]) -> bool:
        """Give these attempts to one worker; returns whether any has room."""
        ask = self._ask(generation, attempts)
        choice = self._router.choose(ask, self._rooms(), self._prefill_ids(), self._now())
        self._tell_breaker_changes()
        if choice is None:
            return False
        self._num_placed[choice.worker_id, choice.why] += len(attempts)
        tickets = self._router.begin(choice, ask, self._now())
        link_id = self._table.link_of(choice.worker_id)
        messages: list[wire.SubmitSequence] = []
        for attempt, ticket in zip(attempts, tickets, strict=True):
            sequence_id = next(self._next_id)
            generation.num_attempts[attempt.choice_idx] += 1
            generation.sequence_ids.add(sequence_id)
            self._placed[sequence_id] = _Placed(generation, attempt, ticket)
            messages.append(
                wire.SubmitSequence(
                    sequence_id=sequence_id,
                    request_id=generation.request.request_id,
                    prompt_token_ids=attempt.prompt_token_ids,
                    sampling=attempt.sampling,
                    want_draft_counts=generation.request.want_draft_counts,
                    use_cache=attempt.use_cache,
                    guard=attempt.guard,
                    prefer_prefill=choice.prefill_id,
                    avoid_prefill=sorted({*choice.avoid_prefill, *attempt.avoid_prefill}),
                )
            )
        self._table.assign(link_id, [message.sequence_id for message in messages])
        for message in messages:
            self._links.send(link_id, message)  # if the link has ended, WorkerLost is on its way
        return True

    def _ask(self, generation: Generation, attempts: Sequence[Attempt]) -> Ask:
        prompts = {id(attempt.prompt_token_ids): attempt.prompt_token_ids for attempt in attempts}
        reads_caches = all(attempt.use_cache for attempt in attempts)
        return Ask(
            num_sequences=len(attempts),
            num_prompt_tokens=sum(map(len, prompts.values())),
            names=generation.request.prompt_names if reads_caches and self._router.reads_prompts else (),
            session_key=generation.request.session_key,
            avoid_workers=frozenset[str]().union(*(attempt.avoid_workers for attempt in attempts)),
            avoid_prefill=frozenset[str]().union(*(attempt.avoid_prefill for attempt in attempts)),
        )

    def _rooms(self) -> list[Room]:
        return [
            Room(
                worker_id=worker.hello.worker_id,
                num_sequences=len(worker.sequence_ids),
                num_running=worker.hello.model.max_running,
                num_free=worker.num_free,
            )
            for worker in self.workers
            if worker.takes_requests
        ]

    def _prefill_ids(self) -> list[str]:
        return [worker.hello.worker_id for worker in self.workers if worker.computes_prompts]

    def _end_ticket(self, placed: _Placed, output: wire.SequenceOutput) -> None:
        verdict, finish = output.verdict, output.finish_reason or "cancelled"
        self._router.end(
            placed.ticket,
            _ending(placed, finish),
            self._now(),
            num_tokens=placed.num_tokens,
            reason=f"{finish}: {verdict.kind}" if verdict is not None else finish,
            prefill_id=verdict.prefill_id if verdict is not None else "",
            is_forgotten=finish == "broken",
        )
        self._tell_breaker_changes()

    def _tell_breaker_changes(self) -> None:
        """One line a change, and a count."""
        for change in self._router.take_changes():
            self._num_breaker_changes[change.worker_id, change.after] += 1
            logger.warning(
                "breaker worker=%s from=%s to=%s reason=%s",
                *(change.worker_id, change.before.value, change.after.value, change.reason),
            )

    def _cancel_sequence(self, sequence_id: int) -> None:
        for link_id, worker in self._table.workers.items():
            if sequence_id in worker.sequence_ids:
                self._links.send(link_id, wire.CancelSequence(sequence_id=sequence_id))

    def _on_event(self, event: LinkEvent) -> None:
        match event:
            case WorkerConnected(link_id, hello):
                self._on_connected(link_id, hello)
            case WorkerMessage(link_id, message):
                self._on_message(link_id, message)
            case WorkerLost(link_id, reason):
                self._on_lost(link_id, reason)
            case _:
                assert_never(event)
        self.questions.announce_change()

    def _on_connected(self, link_id: LinkId, hello: wire.WorkerHello) -> None:
        if refusal := self._refusal(hello):
            logger.error("worker %s, life %d, is refused: %s", hello.worker_id, hello.life, refusal)
            self._links.send(link_id, wire.Refused(reason=refusal))
            return
        self._end_earlier_links(hello)
        logger.info("worker %s, life %d, is ready", hello.worker_id, hello.life)
        self._table.connect(link_id, hello)
        self._router.connect(hello.worker_id, hello.model.num_blocks * hello.model.block_size, self._now())
        self._facts = hello.model if self._facts is None or hello.role is not Role.PREFILL else self._facts
        self._announce_instances()
        self._report_workers()
        self._place_waiting()

    def _refusal(self, hello: wire.WorkerHello) -> str:
        """Why a worker is not taken; empty if it is."""
        if misfit := self._misfit(hello.model.decisive):
            return f"the gateway takes no worker that answers differently: {misfit}"
        lives = [each.hello.life for each in self.workers if each.hello.worker_id == hello.worker_id]
        if lives and max(lives) > hello.life:
            return f"worker_id: got {hello.worker_id}, which a later life has, that of {max(lives)}"
        return ""

    def _end_earlier_links(self, hello: wire.WorkerHello) -> None:
        """One name is one worker: its earlier life is told to end, an earlier link of the same life counts as lost."""
        earlier = [each for each in self._table.workers.items() if each[1].hello.worker_id == hello.worker_id]
        for link_id, worker in earlier:
            if worker.hello.life < hello.life:
                reason = f"worker_id: got {hello.worker_id}, which a later life has taken, that of {hello.life}"
                self._links.send(link_id, wire.Refused(reason=reason))
            self._on_lost(link_id, f"it has come again as life {hello.life}")

    def _misfit(self, decisive: Mapping[str, str]) -> str:
        """In what a worker would answer differently than others here; empty if in nothing."""
        for worker in self._table.workers.values():
            return differences(worker.hello.model.decisive, decisive)
        ours = {"model": self._model_digest} if self._model_digest else {}
        return differences(ours, {name: value for name, value in decisive.items() if name in ours})

    def _on_message(self, link_id: LinkId, message: wire.ToGateway) -> None:
        worker = self._table.workers.get(link_id)
        if worker is None:  # it was refused, and has not read that yet
            return
        match message:
            case wire.StepOutputs(outputs=outputs):
                for output in outputs:
                    self._on_output(link_id, output)
            case wire.WorkerStatistics():
                worker.statistics = message
            case wire.Leaving():
                logger.info("worker %s, life %d, is leaving", worker.hello.worker_id, worker.hello.life)
                worker.is_draining = True
                self._announce_instances()
                self._links.send(link_id, wire.Drain())
                self._report_workers()
            case wire.Drained():
                worker.is_drained = True
            case wire.InvariantsChecked():
                worker.invariants = message
            case wire.QuarantineReleased():
                worker.released = message
            case wire.WorkerHello():
                logger.error("worker %s said hello twice", worker.hello.worker_id)
            case _:
                assert_never(message)

    def _on_output(self, link_id: LinkId, output: wire.SequenceOutput) -> None:
        placed = self._placed.get(output.sequence_id)
        worker = self._table.workers[link_id]
        if placed is None or output.sequence_id not in worker.sequence_ids:
            self._num_unknown_outputs += 1
            return
        generation = placed.generation
        placed.num_tokens += len(output.token_ids)
        if output.token_ids:
            self._router.first_token(placed.ticket, self._now())
        if output.finish_reason is not None:
            self._table.finish(link_id, output.sequence_id)
            del self._placed[output.sequence_id]
            generation.sequence_ids.discard(output.sequence_id)
        if output.verdict is not None and not placed.is_complete:
            self._on_verdict(placed, worker.hello.worker_id, output.verdict)
        if output.finish_reason is not None:
            self._end_ticket(placed, output)
        if not generation.is_closed:
            event = Broken if output.finish_reason == "broken" else Output
            generation.events.put(event(placed.attempt.choice_idx, output))
        if output.finish_reason is not None:
            self._place_waiting()

    def _on_verdict(self, placed: _Placed, worker_id: str, verdict: Verdict) -> None:
        generation, choice_idx = placed.generation, placed.attempt.choice_idx
        placed.was_observed |= verdict.action == "observe"
        history = generation.histories[choice_idx]
        attempt = history.num_attempts
        request_id = generation.request.request_id
        self.guard_book.add(history, GuardRecord(time.time(), request_id, choice_idx, attempt, worker_id, verdict))
        if generation.is_closed:
            self.guard_book.settle(history, GuardOutcome.UNFINISHED)

    def _on_lost(self, link_id: LinkId, reason: str) -> None:
        worker = self._table.workers.get(link_id)
        if worker is None:  # it was refused
            return
        if worker.is_drained:
            logger.info("worker %s, life %d, has left", worker.hello.worker_id, worker.hello.life)
        else:
            logger.warning("worker %s, life %d, is lost: %s", worker.hello.worker_id, worker.hello.life, reason)
            self._num_workers_lost += 1
        lost_ids = sorted(self._table.lose(link_id))
        self._announce_instances()
        self._report_workers()
        lost: dict[int, list[_Placed]] = {}
        for sequence_id in lost_ids:
            placed = self._placed.pop(sequence_id)
            placed.generation.sequence_ids.discard(sequence_id)
            self._router.end(placed.ticket, Ending.NEUTRAL, self._now())
            lost.setdefault(id(placed.generation), []).append(placed)
        self._router.disconnect(worker.hello.worker_id, self._now(), is_lost=not worker.is_drained)
        self._tell_breaker_changes()
        for together in lost.values():
            if not together[0].generation.is_closed:
                attempts = tuple(placed.attempt for placed in together)
                self._begin_again(together[0].generation, attempts, WorkerId(worker.hello.worker_id))

    def _begin_again(self, generation: Generation, attempts: tuple[Attempt, ...], worker_id: WorkerId) -> None:
        if generation.is_delivered:
            self._fail(
                generation, GenerationError(f"worker {worker_id} was lost during the answer", None, "worker_lost")
            )
        elif max(generation.num_attempts[attempt.choice_idx] for attempt in attempts) >= MAX_ATTEMPTS:
            message = f"worker {worker_id} was lost; given up after {MAX_ATTEMPTS} attempts"
            self._fail(generation, GenerationError(message, None, "worker_lost"))
        else:
            self._num_restarts += 1
            generation.events.put(Restarted(frozenset(attempt.choice_idx for attempt in attempts)))
            self._wait_for_worker(generation, attempts, "the worker was lost, and no other was ready")
            self._place_waiting()

    def _wait_for_worker(self, generation: Generation, attempts: tuple[Attempt, ...], why: str) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.call_later(self._start_timeout_seconds, self._on_waited_too_long, generation, why)
        self._waiting.append(_Waiting(generation, attempts, give_up))

    def _on_waited_too_long(self, generation: Generation, why: str) -> None:
        self._stop_waiting(generation)
        message = f"{why} within {self._start_timeout_seconds} s"
        self._fail(generation, UnavailableError(message, None, "no_worker"))

    def _stop_waiting(self, generation: Generation) -> None:
        for waiting in self._waiting:
            if waiting.generation is generation:
                waiting.give_up.cancel()
        self._waiting = [waiting for waiting in self._waiting if waiting.generation is not generation]

    def _place_waiting(self) -> None:
        """Place those that wait, first come, first served."""
        while self._waiting and self._try_place(self._waiting[0].generation, self._waiting[0].attempts):
            self._waiting.pop(0).give_up.cancel()

    def _fail(self, generation: Generation, error: ApiError) -> None:
        if not generation.is_closed:
            generation.events.put(Failed(error))

    def _report_workers(self) -> None:
        serving = [worker.hello.worker_id for worker in self.workers if worker.takes_requests]
        prefill = [each.hello.worker_id for each in self.workers if each.computes_prompts]
        self._on_workers_changed(serving, prefill)

    def _announce_instances(self) -> None:
        """Tell every decode worker where the prefill instances are."""
        workers = self._table.workers
        instances = [each.hello for each in workers.values() if each.computes_prompts]
        endpoints = [endpoint for hello in instances for endpoint in hello.peer_endpoints]
        for link_id, worker in workers.items():
            if worker.hello.role is Role.DECODE:
                self._links.send(link_id, wire.PrefillInstances(endpoints=endpoints))


_ENDINGS: Mapping[wire.FinishReason, Ending] = {
    "stop": Ending.GOOD,
    "length": Ending.GOOD,
    "cancelled": Ending.NEUTRAL,
    "error": Ending.BAD,
    "broken": Ending.BAD,
}
"""What the end of a sequence says of its worker."""


def _ending(placed: _Placed, finish: wire.FinishReason) -> Ending:
    if placed.is_complete:
        return Ending.GOOD
    if placed.was_observed and finish != "broken":
        return Ending.NEUTRAL
    return _ENDINGS[finish]


_NO_RETRY: Mapping[Limit, str] = {
    Limit.ACTION: "such answers are not tried again here",
    Limit.SENT: "a part of it was sent already",
    Limit.ATTEMPTS: "there are no attempts left",
    Limit.TOKENS: "its attempts took as many tokens as they may",
    Limit.SECONDS: "its attempts took as long as they may",
    Limit.FLEET: "too many requests were tried again lately",
}


def _retry_rules(config: ServeConfig) -> RetryRules:
    guard = config.guard
    return RetryRules(
        max_attempts=guard.guard_max_attempts,
        max_tokens=guard.guard_retry_tokens,
        max_seconds=guard.guard_retry_seconds,
        resumes=guard.guard_after_sent == "resume",
    )


def _router_rules(config: ServeConfig) -> RouterRules:
    routing = config.routing
    return RouterRules(
        choice=ChoiceRules(
            policy=routing.routing,
            max_imbalance=routing.routing_imbalance,
            min_handoff_tokens=config.handoff.min_handoff_tokens,
        ),
        breaker=BreakerRules(open_seconds=routing.breaker_seconds, slow_start_seconds=routing.slow_start_seconds),
        retry_share=routing.retry_share,
        retry_burst=routing.retry_burst,
    )
