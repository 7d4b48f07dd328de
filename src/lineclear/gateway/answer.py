"""Reads one generation to its end: events from the dispatcher in, deltas and the sum of them out."""

from collections.abc import Callable

from lineclear.gateway.accepted import ClientGone, Failed, Generation, GenerationEvent, Output, Restarted
from lineclear.gateway.choice import ChoiceAssembler, ChoiceDelta
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.dispatch import Dispatcher
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
        on_tokens: called with the number of tokens of each output.
    """

    def __init__(
        self,
        generation: Generation,
        dispatcher: Dispatcher,
        vocabulary: Vocabulary,
        on_tokens: Callable[[int], None],
    ) -> None:
        self._generation = generation
        self._dispatcher = dispatcher
        self._vocabulary = vocabulary
        self._on_tokens = on_tokens
        request = generation.request
        self._assemblers = [ChoiceAssembler(vocabulary, request.answer_format) for _ in request.choices]
        self._ended_by_worker: set[int] = set()
        self.choices = [CollectedChoice() for _ in request.choices]

    @property
    def is_complete(self) -> bool:
        """Whether every choice has its ending, and its draft counts where they are wanted."""
        return self._has_every_ending and (
            not self._generation.request.want_draft_counts or len(self._ended_by_worker) == len(self._assemblers)
        )

    @property
    def tool_calls(self) -> list[ToolCallParser]:
        """The tool call parsers of all choices, for their counts."""
        return [assembler.tool_calls for assembler in self._assemblers]

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

    def usage(self) -> Usage:
        """The tokens so far."""
        groups: dict[int, tuple[int, list[int]]] = {}
        for choice, assembler in zip(self._generation.request.choices, self._assemblers, strict=True):
            prompt = choice.prompt_token_ids
            groups.setdefault(id(prompt), (len(prompt), []))[1].append(assembler.num_cached_tokens)
        return Usage(
            num_prompt_tokens=sum(num_tokens for num_tokens, _ in groups.values()),
            num_cached_tokens=sum(min(num_cached) for _, num_cached in groups.values()),
            num_completion_tokens=sum(assembler.num_tokens for assembler in self._assemblers),
            num_reasoning_tokens=sum(assembler.num_reasoning_tokens for assembler in self._assemblers),
        )

    @property
    def _has_every_ending(self) -> bool:
        return all(assembler.is_finished for assembler in self._assemblers)

    def _take_event(self, event: GenerationEvent, deltas: list[tuple[int, ChoiceDelta]]) -> None:
        match event:
            case Output(choice_idx, output):
                self._take_output(choice_idx, output, deltas)
            case ClientGone():
                raise ClientDisconnectedError
            case Restarted() | Failed() if self._has_every_ending:
                self._ended_by_worker.update(range(len(self._assemblers)))  # only the draft counts are lost
            case Restarted(choice_idxs):
                deltas[:] = [each for each in deltas if each[0] not in choice_idxs]
                for choice_idx in choice_idxs:
                    self._begin_again(choice_idx)
            case Failed(error):
                raise error

    def _begin_again(self, choice_idx: int) -> None:
        self._assemblers[choice_idx] = ChoiceAssembler(self._vocabulary, self._generation.request.answer_format)
        self._ended_by_worker.discard(choice_idx)
        self.choices[choice_idx] = CollectedChoice()

    def _take_output(self, choice_idx: int, output: SequenceOutput, deltas: list[tuple[int, ChoiceDelta]]) -> None:
        assembler = self._assemblers[choice_idx]
        was_finished = assembler.is_finished
        num_tokens = len(output.token_ids) + (output.stop_token_id is not None)
        if num_tokens and not was_finished:
            self._on_tokens(num_tokens)
        delta = assembler.push(output)
        if output.finish_reason is not None:
            self._ended_by_worker.add(choice_idx)
        elif assembler.is_finished and not was_finished:
            self._dispatcher.cancel_choice(self._generation, choice_idx)
        self.choices[choice_idx].draft = assembler.draft
        if not was_finished:
            self.choices[choice_idx].add(delta)
            deltas.append((choice_idx, delta))
