"""Reads one generation to its end: events from the dispatcher in, deltas and the sum of them out."""

from collections.abc import Callable

from lineclear.gateway.accepted import Broken, ClientGone, Failed, Generation, GenerationEvent, Output, Restarted
from lineclear.gateway.choice import ChoiceDelta
from lineclear.gateway.collected import CollectedChoice, GuardMark
from lineclear.gateway.dispatch import Dispatcher
from lineclear.gateway.held_choice import HeldChoice
from lineclear.gateway.http import ClientDisconnectedError
from lineclear.gateway.tool_calls import ToolCallParser
from lineclear.gateway.usage import Usage
from lineclear.gateway.vocabulary import Vocabulary
from lineclear.protocol.wire import SequenceOutput


class AnswerReader:
    """The reader of one generation.

    Args:
        generation: what is read.
        dispatcher: told to cancel a choice that is complete before the worker ends it.
        vocabulary: the bytes of every token.
        on_tokens: called with the number of tokens of each delta.
        num_holdback_tokens: that each choice is behind, so that what goes wrong within them is never shown.
    """

    def __init__(
        self,
        generation: Generation,
        dispatcher: Dispatcher,
        vocabulary: Vocabulary,
        on_tokens: Callable[[int], None],
        num_holdback_tokens: int = 0,
    ) -> None:
        self._generation = generation
        self._dispatcher = dispatcher
        self._on_tokens = on_tokens
        request = generation.request
        self._held = [HeldChoice(vocabulary, request.answer_format, num_holdback_tokens) for _ in request.choices]
        self._ended_by_worker: set[int] = set()

    @property
    def choices(self) -> list[CollectedChoice]:
        """What the choices have come to."""
        return [held.collected for held in self._held]

    @property
    def is_complete(self) -> bool:
        """Whether every choice has its ending, and its draft counts where they are wanted."""
        return self._has_every_ending and (
            not self._generation.request.want_draft_counts or len(self._ended_by_worker) == len(self._held)
        )

    @property
    def tool_calls(self) -> list[ToolCallParser]:
        """The tool call parsers of all choices, for their counts."""
        return [held.assembler.tool_calls for held in self._held]

    async def take(self, timeout_seconds: float | None) -> list[tuple[int, ChoiceDelta]]:
        """The next deltas by choice; none if none came before the timeout, or if what came says nothing yet.

        Raises:
            ApiError: The request failed.
            ClientDisconnectedError: The client left.
        """
        deltas: list[tuple[int, ChoiceDelta]] = []
        for event in await self._generation.events.take_all(timeout_seconds):
            if self.is_complete:
                break
            self._take_event(event, deltas)
        return deltas

    def mark_sent(self) -> None:
        """The client is sent what was taken so far; from now on it cannot be taken back."""
        self._generation.mark_delivered()
        for held in self._held:
            held.mark_sent()

    def usage(self) -> Usage:
        """The tokens so far."""
        groups: dict[int, tuple[int, list[int]]] = {}
        assemblers = [held.assembler for held in self._held]
        for choice, assembler in zip(self._generation.request.choices, assemblers, strict=True):
            prompt = choice.prompt_token_ids
            groups.setdefault(id(prompt), (len(prompt), []))[1].append(assembler.num_cached_tokens)
        return Usage(
            num_prompt_tokens=sum(num_tokens for num_tokens, _ in groups.values()),
            num_cached_tokens=sum(min(num_cached) for _, num_cached in groups.values()),
            num_completion_tokens=sum(assembler.num_tokens for assembler in assemblers),
            num_reasoning_tokens=sum(assembler.num_reasoning_tokens for assembler in assemblers),
        )

    @property
    def _has_every_ending(self) -> bool:
        return all(held.is_finished for held in self._held)

    def _take_event(self, event: GenerationEvent, deltas: list[tuple[int, ChoiceDelta]]) -> None:
        match event:
            case Output(choice_idx, output):
                self._take_output(choice_idx, output, deltas)
            case Broken(choice_idx, output):
                self._take_broken(choice_idx, output, deltas)
            case ClientGone():
                raise ClientDisconnectedError
            case Restarted() | Failed() if self._has_every_ending:
                self._ended_by_worker.update(range(len(self._held)))  # only the draft counts are lost
            case Restarted(choice_idxs):
                for choice_idx in choice_idxs:
                    self._go_back(choice_idx, deltas)
            case Failed(error):
                raise error

    def _go_back(self, choice_idx: int, deltas: list[tuple[int, ChoiceDelta]]) -> list[int]:
        """Forget what was not sent of a choice; returns the tokens of what was."""
        deltas[:] = [each for each in deltas if each[0] != choice_idx]
        self._ended_by_worker.discard(choice_idx)
        return self._held[choice_idx].go_back()

    def _take_broken(self, choice_idx: int, output: SequenceOutput, deltas: list[tuple[int, ChoiceDelta]]) -> None:
        held = self._held[choice_idx]
        if held.is_finished:  # it was whole before
            self._ended_by_worker.add(choice_idx)
            return
        num_lost_tokens = held.num_unsent_tokens + len(output.token_ids)
        sent_token_ids = self._go_back(choice_idx, deltas)
        self._dispatcher.begin_again_elsewhere(self._generation, choice_idx, sent_token_ids, num_lost_tokens)

    def _take_output(self, choice_idx: int, output: SequenceOutput, deltas: list[tuple[int, ChoiceDelta]]) -> None:
        held = self._held[choice_idx]
        was_finished = held.is_finished
        for released in held.push(output):
            if released.num_tokens:
                self._on_tokens(released.num_tokens)
            deltas.append((choice_idx, released.delta))
        if output.finish_reason is not None:
            self._ended_by_worker.add(choice_idx)
        elif held.is_finished and not was_finished:
            self._dispatcher.cancel_choice(self._generation, choice_idx)
        if held.is_finished and not was_finished:
            self._finish(choice_idx)

    def _finish(self, choice_idx: int) -> None:
        history = self._generation.histories[choice_idx]
        self._dispatcher.finish_choice(self._generation, choice_idx)
        if history.observed:
            verdict = history.observed[-1].verdict
            self._held[choice_idx].collected.mark = GuardMark(
                verdict.kind, verdict.detector, verdict.num_tokens, history.num_attempts, bool(history.broken)
            )
