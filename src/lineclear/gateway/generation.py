"""One request inside the gateway, whichever API it came through, and the codecs' side of it.

    body ─ Codec.prepare (in a thread) ─▶ ApiCall(GenerationRequest, Reply) ─ Dispatcher ─▶ outputs ─ Reply ─▶ bytes

A codec knows one API: its fields, its errors' names, the shape of its answers. It knows nothing of workers, and what
lies between knows nothing of APIs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from lineclear.base.ids import RequestId
from lineclear.gateway.choice import AnswerFormat, ChoiceDelta
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.errors import ApiError
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.usage import Usage
from lineclear.protocol.sampling import SamplingParams
from lineclear.routing.sketch import piece_names


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest:
    """One sequence to generate. Choices of one prompt share its list."""

    prompt_token_ids: list[int]
    sampling: SamplingParams


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What is generated for one client call; the choices are counted as the client counts them.

    `choices_param` is the field that says how many there are. Requests with the same `session_key` stay together; an
    empty one is no session.
    """

    request_id: RequestId
    choices: tuple[ChoiceRequest, ...]
    answer_format: AnswerFormat
    want_draft_counts: bool = False
    choices_param: str = "n"
    session_key: str = ""

    @cached_property
    def prompt_names(self) -> tuple[bytes, ...]:
        """The names of the first prompt's pieces: its prefix is looked for by them. Cost: see `piece_names`."""
        return piece_names(self.choices[0].prompt_token_ids)


@dataclass(frozen=True, slots=True)
class LastWords:
    """The end of a stream that could not be completed.

    With `is_ending` the data is an ending by the API's own rules, and the stream ends as a stream does; without, the
    connection is cut after it, so that nobody takes the answer for a whole one.
    """

    data: bytes
    is_ending: bool = False


class Reply(Protocol):
    """How one API says an answer. One object serves one request, whole or as a stream."""

    def begin(self) -> bytes:
        """What a stream says before the first token."""
        ...

    def delta(self, choice_idx: int, delta: ChoiceDelta) -> bytes:
        """What a stream says of a delta; nothing if there is nothing to say."""
        ...

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """What a stream says last."""
        ...

    def keep_alive(self) -> bytes:
        """What a stream says while there is no news, so that its client keeps waiting."""
        ...

    def failure(self, error: ApiError, *, is_ready: bool) -> "LastWords":
        """What a stream says when it cannot be completed.

        Args:
            error: why.
            is_ready: another request would be accepted now.
        """
        ...

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer in one piece."""
        ...


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """A prepared request and the reply to it."""

    request: GenerationRequest
    reply: Reply
    is_stream: bool


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """What a codec is told besides the body.

    `created` is in seconds since the epoch; `session_key` is what the headers say, which comes before what a body says.
    """

    request_id: RequestId
    created: int
    model: ServedModel
    session_key: str = ""


class Codec(Protocol):
    """One API that generates text."""

    api: str
    """The API's name in metrics."""

    def prepare(self, body: bytes, context: CallContext) -> ApiCall:
        """Read a body: everything about it that can be wrong is found here.

        Raises:
            ApiError: The request cannot be served as it stands.
        """
        ...
