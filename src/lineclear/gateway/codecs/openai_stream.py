"""What OpenAI's two generating APIs have in common on the wire: envelopes, chunks, usage, draft figures, errors."""

from collections.abc import Sequence
from typing import Any

from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.errors import ApiError
from lineclear.gateway.generation import LastWords
from lineclear.gateway.sse import encode_json, event
from lineclear.gateway.usage import Usage, draft_figures, guard_marks

DONE = b"data: [DONE]\n\n"


class OpenAiStream:
    """The envelope of one answer."""

    def __init__(
        self,
        *,
        object_name: str,
        chunk_name: str,
        answer_id: str,
        created: int,
        model: str,
        include_usage: bool,
        want_draft_figures: bool,
    ) -> None:
        self._whole_envelope: dict[str, Any] = {
            "id": answer_id,
            "object": object_name,
            "created": created,
            "model": model,
        }
        self._chunk_envelope = self._whole_envelope | {"object": chunk_name}
        self._include_usage = include_usage
        self._want_draft_figures = want_draft_figures

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None, **extra: object) -> bytes:
        """One event of a stream."""
        body: dict[str, Any] = self._chunk_envelope | {"choices": choices}
        if self._include_usage:
            body["usage"] = usage.openai() if usage is not None else None
        return event(encode_json(body | extra))

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Usage and draft figures where they are wanted, what the guard judged, and the end of the stream."""
        extra = self._extension(choices)
        last = self.chunk([], usage, **extra) if self._include_usage or extra else b""
        return last + DONE

    def failure(self, error: ApiError) -> LastWords:
        """An error as an event, and a cut connection."""
        return LastWords(event(encode_json(error.envelope())))

    def whole(self, objects: list[dict[str, Any]], choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """An answer in one piece."""
        body = self._whole_envelope | {"choices": objects, "usage": usage.openai()}
        return encode_json(body | self._extension(choices))

    def _extension(self, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        said = guard_marks(choices)
        if self._want_draft_figures:
            figures = [{"index": idx} | draft_figures(choice.draft) for idx, choice in enumerate(choices)]
            said["draft_figures"] = figures
        return {"lineclear": said} if said else {}
