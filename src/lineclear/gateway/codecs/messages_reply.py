"""Answers in the words of Anthropic's Messages API.

    ping* ─ message_start ─ (content_block_start ─ content_block_delta* ─ content_block_stop)*
              │                                                            ─ message_delta ─ message_stop
              └ with the first news of the answer: only then is it known how much of the prompt was cached

Invariants:
1. One block is open at a time; indexes count from 0 without gaps.
2. An `error` is said only where the client may try again at once; else the connection is cut, and clients wait longer.
3. A call that was cut off is no call of a whole answer: its arguments are not what the model meant.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from lineclear.gateway.choice import ChoiceDelta, ChoiceFinish
from lineclear.gateway.collected import (
    Block,
    CollectedChoice,
    CollectedReasoning,
    CollectedText,
    CollectedToolCall,
)
from lineclear.gateway.envelopes import anthropic_event
from lineclear.gateway.errors import ApiError
from lineclear.gateway.fragments import Content, Part, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from lineclear.gateway.generation import CallContext, LastWords
from lineclear.gateway.sse import encode_json, typed_event
from lineclear.gateway.usage import Usage, guard_marks

_PING = typed_event({"type": "ping"})

_CUT = LastWords(b"")

_SIGNATURE = "bGluZWNsZWFy"
"""What clients send back with a block of thinking. The text itself comes back, too, so it need not say anything."""


class MessagesReply:
    """Says an answer as events, or as one message.

    Args:
        context: of the request.
        num_prompt_tokens: tokens of the whole prompt, cached ones included.
        fills_context: an answer that ends by its length has filled the model's context.
    """

    def __init__(self, context: CallContext, *, num_prompt_tokens: int, fills_context: bool) -> None:
        self._request_id = context.request_id
        self._model = context.model.name
        self._num_prompt_tokens = num_prompt_tokens
        self._fills_context = fills_context
        self._has_started = False
        self._open_kind: type[Part] | None = None
        self._next_idx = 0

    def begin(self) -> bytes:
        """A sign of life: the message begins with its first news."""
        return _PING

    def keep_alive(self) -> bytes:
        """A ping."""
        return _PING

    def delta(self, choice_idx: int, delta: ChoiceDelta) -> bytes:  # noqa: ARG002 - there is one choice
        """The events of each part."""
        if not delta.parts and delta.finish_reason is None:
            return b""
        events = [] if self._has_started else [self._start(delta.num_cached_tokens)]
        for part in delta.parts:
            events += self._say(part)
        if delta.finish_reason is not None:
            events += self._close()
        return b"".join(events)

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Why the message ended, and what it took."""
        ending = {"stop_reason": self._stop_reason(choices[0]), "stop_sequence": _stop_sequence(choices[0])}
        extra = _extension(choices)
        delta = typed_event({"type": "message_delta", "delta": ending, "usage": usage.anthropic()} | extra)
        return delta + typed_event({"type": "message_stop"})

    def failure(self, error: ApiError, *, is_ready: bool) -> LastWords:
        """The error as an event where another request would be accepted; else nothing but the cut."""
        if not is_ready:
            return _CUT
        return LastWords(typed_event(anthropic_event(error, self._request_id)), is_ending=True)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """A message."""
        [choice] = choices
        content = [shown for idx, block in enumerate(choice.blocks) if (shown := self._block(idx, block)) is not None]
        ending = {"stop_reason": self._stop_reason(choice), "stop_sequence": _stop_sequence(choice)}
        return encode_json(self._message(content) | ending | {"usage": usage.anthropic()} | _extension(choices))

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _start(self, num_cached_tokens: int) -> bytes:
        self._has_started = True
        usage = Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=num_cached_tokens,
            num_completion_tokens=0,
            num_reasoning_tokens=0,
        )
        return typed_event({"type": "message_start", "message": self._message([]) | {"usage": usage.anthropic()}})

    def _say(self, part: Part) -> list[bytes]:
        match part:
            case Content(text):
                return [*self._open(Content, {"type": "text", "text": ""}), self._add("text_delta", text=text)]
            case Reasoning(text):
                opening = self._open(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
                return [*opening, self._add("thinking_delta", thinking=text)]
            case ToolCallStart(_, name):
                return [*self._close(), *self._open(ToolCallStart, self._tool_use(self._next_idx, name, {}))]
            case ToolCallArguments(_, text):
                return [self._add("input_json_delta", partial_json=text)]
            case ToolCallEnd():
                return self._close()

    def _open(self, kind: type[Part], block: dict[str, Any]) -> list[bytes]:
        """The events that make a block of this kind the open one."""
        if self._open_kind is kind:
            return []
        closing = self._close()
        self._open_kind = kind
        start = {"type": "content_block_start", "index": self._next_idx, "content_block": block}
        self._next_idx += 1
        return [*closing, typed_event(start)]

    def _close(self) -> list[bytes]:
        kind, self._open_kind = self._open_kind, None
        if kind is None:
            return []
        signature = [self._add("signature_delta", signature=_SIGNATURE)] if kind is Reasoning else []
        return [*signature, typed_event({"type": "content_block_stop", "index": self._next_idx - 1})]

    def _add(self, kind: str, **fields: str) -> bytes:
        delta = {"type": kind, **fields}
        return typed_event({"type": "content_block_delta", "index": self._next_idx - 1, "delta": delta})

    def _block(self, idx: int, block: Block) -> dict[str, Any] | None:
        match block:
            case CollectedText():
                return {"type": "text", "text": block.text}
            case CollectedReasoning():
                return {"type": "thinking", "thinking": block.text, "signature": _SIGNATURE}
            case CollectedToolCall():
                if not block.is_complete:
                    return None
                return self._tool_use(idx, block.name, msgspec.json.decode(block.arguments))

    def _tool_use(self, idx: int, name: str, arguments: object) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{self._request_id}_{idx}", "name": name, "input": arguments}

    def _stop_reason(self, choice: CollectedChoice) -> str:
        finish: ChoiceFinish | None = choice.finish_reason
        if finish == "length":
            return "model_context_window_exceeded" if self._fills_context else "max_tokens"
        if finish == "tool_calls":
            return "tool_use"
        return "end_turn" if _stop_sequence(choice) is None else "stop_sequence"


def _extension(choices: Sequence[CollectedChoice]) -> dict[str, Any]:
    marks = guard_marks(choices)
    return {"lineclear": marks} if marks else {}


def _stop_sequence(choice: CollectedChoice) -> str | None:
    return choice.stop_reason if isinstance(choice.stop_reason, str) else None
