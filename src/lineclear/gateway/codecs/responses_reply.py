"""Answers in the words of OpenAI's Responses API.

    response.created ─ response.in_progress+ ─ items ─ response.completed | response.incomplete | response.failed

    reasoning  output_item.added ─ reasoning_summary_part.added ─ reasoning_summary_text.delta* ─ ….done ─ …part.done
    message    output_item.added ─ content_part.added ─ output_text.delta* ─ output_text.done ─ content_part.done
    function   output_item.added ─ function_call_arguments.delta* ─ function_call_arguments.done
    custom     output_item.added ─ custom_tool_call_input.delta ─ custom_tool_call_input.done
               each then: output_item.done with the whole item, which is what agents act on

Reasoning is said as a summary, in full: that is the part that agents send back.

Invariants:
1. One item is open at a time; `output_index` counts from 0, `sequence_number` goes up by one with each event.
2. The last event has all items, equal to those of the `output_item.done` events.
3. While there is no news, `response.in_progress` is said again: comments do not count as signs of life.
"""

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from lineclear.gateway.choice import ChoiceDelta
from lineclear.gateway.codecs.responses_tools import INPUT, DeclaredTool, ResponseTools
from lineclear.gateway.collected import (
    Block,
    CollectedChoice,
    CollectedReasoning,
    CollectedText,
    CollectedToolCall,
    Pieces,
)
from lineclear.gateway.errors import ApiError
from lineclear.gateway.fragments import Content, Part, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from lineclear.gateway.generation import CallContext, LastWords
from lineclear.gateway.sse import encode_json, typed_event
from lineclear.gateway.usage import Usage, guard_marks

_SEALED = "bGluZWNsZWFy"
"""Some clients leave reasoning out of the next request if there is nothing here, also those that do not ask for it, and
so lose what is cached behind it. The text itself is in the summary; this need not say anything."""

_LEFT_OUT: dict[str, Any] = {"instructions": None, "metadata": {}, "tools": [], "tool_choice": "auto"}

_PREFIXES = {CollectedText: "msg", CollectedReasoning: "rs", CollectedToolCall: "fc"}


class ResponsesReply:
    """Says an answer as events, or as one response.

    Args:
        context: of the request.
        echo: what a response says of its request.
        tools: as the client knows them.
    """

    def __init__(self, context: CallContext, echo: dict[str, Any], tools: ResponseTools) -> None:
        self._request_id = context.request_id
        self._tools = tools
        self._envelope: dict[str, Any] = {
            "id": f"resp_{context.request_id}",
            "object": "response",
            "created_at": context.created,
            "model": context.model.name,
            **echo,
        }
        self._num_events = 0
        self._open: Block | None = None
        self._next_idx = 0

    def begin(self) -> bytes:
        """The response, with nothing in it yet."""
        return self._event("response.created", response=self._response("in_progress")) + self.keep_alive()

    def keep_alive(self) -> bytes:
        """That it is still in progress; without what may be long of the request, since it is said again and again."""
        return self._event("response.in_progress", response=self._response("in_progress") | _LEFT_OUT)

    def delta(self, choice_idx: int, delta: ChoiceDelta) -> bytes:  # noqa: ARG002 - there is one choice
        """The events of each part."""
        events = [event for part in delta.parts for event in self._say(part)]
        if delta.finish_reason is not None:
            events += self._close(is_cut=delta.finish_reason == "length")
        return b"".join(events)

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The whole response."""
        response = self._ended(choices[0], usage)
        return self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError, *, is_ready: bool) -> LastWords:  # noqa: ARG002 - the same either way
        """The failed response, in the words after which agents try again."""
        failed = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        return LastWords(self._event("response.failed", response=failed), is_ending=True)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """A response."""
        return encode_json(self._ended(choices[0], usage))

    def _ended(self, choice: CollectedChoice, usage: Usage) -> dict[str, Any]:
        is_cut = choice.finish_reason == "length"
        last_idx = len(choice.blocks) - 1
        output = [
            self._item(idx, block, _status(block, is_cut=is_cut and idx == last_idx))
            for idx, block in enumerate(choice.blocks)
        ]
        response = self._response("incomplete" if is_cut else "completed", output)
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        marks = guard_marks([choice])
        return response | {"usage": usage.responses()} | ({"lineclear": marks} if marks else {})

    def _response(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        fields = {"status": status, "output": output, "error": None, "incomplete_details": None, "usage": None}
        return self._envelope | fields

    def _event(self, kind: str, **fields: object) -> bytes:
        event = typed_event({"type": kind, "sequence_number": self._num_events, **fields})
        self._num_events += 1
        return event

    def _say(self, part: Part) -> list[bytes]:
        match part:
            case Content(text):
                opening = self._open_run(CollectedText)
                return [*opening, self._add_text("response.output_text.delta", text, content_index=0, logprobs=[])]
            case Reasoning(text):
                opening = self._open_run(CollectedReasoning)
                return [*opening, self._add_text("response.reasoning_summary_text.delta", text, summary_index=0)]
            case ToolCallStart(_, name):
                return [*self._close(is_cut=False), *self._open_block(CollectedToolCall(name))]
            case ToolCallArguments(_, text):
                if self._is_custom:
                    self._piece(text)
                    return []
                return [self._add_text("response.function_call_arguments.delta", text)]
            case ToolCallEnd():
                assert isinstance(self._open, CollectedToolCall)
                self._open.is_complete = True
                return self._close(is_cut=False)

    @property
    def _is_custom(self) -> bool:
        return isinstance(self._open, CollectedToolCall) and self._declared(self._open.name).is_custom

    def _declared(self, shown_name: str) -> DeclaredTool:
        return self._tools.by_shown_name[shown_name]

    def _open_run(self, kind: type[CollectedText] | type[CollectedReasoning]) -> list[bytes]:
        """The events that make an item of this kind the open one."""
        if isinstance(self._open, kind):
            return []
        return [*self._close(is_cut=False), *self._open_block(kind(Pieces()))]

    def _open_block(self, block: Block) -> list[bytes]:
        self._open = block
        self._next_idx += 1
        item = self._item(self._next_idx - 1, block, "in_progress")
        return [self._about_output("response.output_item.added", item=item), *self._open_part(block)]

    def _open_part(self, block: Block) -> list[bytes]:
        match block:
            case CollectedText():
                return [self._about_item("response.content_part.added", content_index=0, part=_text_part(""))]
            case CollectedReasoning():
                part = _summary_part("")
                return [self._about_item("response.reasoning_summary_part.added", summary_index=0, part=part)]
            case CollectedToolCall():
                return []

    def _close(self, *, is_cut: bool) -> list[bytes]:
        block = self._open
        if block is None:
            return []
        item = self._item(self._next_idx - 1, block, _status(block, is_cut=is_cut))
        events = [*self._close_part(block, item), self._about_output("response.output_item.done", item=item)]
        self._open = None
        return events

    def _close_part(self, block: Block, item: dict[str, Any]) -> list[bytes]:
        match block:
            case CollectedText():
                text = block.text
                return [
                    self._about_item("response.output_text.done", content_index=0, text=text, logprobs=[]),
                    self._about_item("response.content_part.done", content_index=0, part=_text_part(text)),
                ]
            case CollectedReasoning():
                text, part = block.text, _summary_part(block.text)
                return [
                    self._about_item("response.reasoning_summary_text.done", summary_index=0, text=text),
                    self._about_item("response.reasoning_summary_part.done", summary_index=0, part=part),
                ]
            case CollectedToolCall() if self._is_custom:
                written: str = item["input"]
                return [
                    self._about_item("response.custom_tool_call_input.delta", delta=written),
                    self._about_item("response.custom_tool_call_input.done", input=written),
                ]
            case CollectedToolCall():
                return [
                    self._about_item(
                        "response.function_call_arguments.done", name=item["name"], arguments=item["arguments"]
                    )
                ]
            case _:
                assert_never(block)

    def _piece(self, text: str) -> None:
        assert self._open is not None
        self._open.pieces.append(text)

    def _add_text(self, kind: str, text: str, **fields: object) -> bytes:
        self._piece(text)
        return self._about_item(kind, delta=text, **fields)

    def _about_output(self, kind: str, **fields: object) -> bytes:
        return self._event(kind, output_index=self._next_idx - 1, **fields)

    def _about_item(self, kind: str, **fields: object) -> bytes:
        assert self._open is not None
        return self._about_output(kind, item_id=self._item_id(self._next_idx - 1, self._open), **fields)

    def _item_id(self, idx: int, block: Block) -> str:
        return f"{_PREFIXES[type(block)]}_{self._request_id}_{idx}"

    def _item(self, idx: int, block: Block, status: str) -> dict[str, Any]:
        """An item as it is said; one that is in progress has nothing in it yet."""
        item: dict[str, Any] = {"id": self._item_id(idx, block), "status": status}
        is_new = status == "in_progress"
        match block:
            case CollectedText():
                return item | {
                    "type": "message",
                    "role": "assistant",
                    "content": [] if is_new else [_text_part(block.text)],
                }
            case CollectedReasoning():
                summary = [] if is_new else [_summary_part(block.text)]
                return item | {"type": "reasoning", "summary": summary, "encrypted_content": _SEALED}
            case CollectedToolCall():
                return item | self._call(idx, block)

    def _call(self, idx: int, block: CollectedToolCall) -> dict[str, Any]:
        tool = self._declared(block.name)
        call: dict[str, Any] = {"call_id": f"call_{self._request_id}_{idx}", "name": tool.name}
        if tool.namespace is not None:
            call["namespace"] = tool.namespace
        if tool.is_custom:
            return call | {"type": "custom_tool_call", "input": _custom_input(block)}
        return call | {"type": "function_call", "arguments": block.arguments}


def _status(block: Block, *, is_cut: bool) -> str:
    """A call says itself whether it is whole; a text is whole unless the answer was cut off behind it."""
    is_whole = block.is_complete if isinstance(block, CollectedToolCall) else not is_cut
    return "completed" if is_whole else "incomplete"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _custom_input(block: CollectedToolCall) -> str:
    """The text for a custom tool; nothing of a call that was cut off, because half a patch may be a patch, too."""
    if not block.is_complete:
        return ""
    arguments: dict[str, object] = msgspec.json.decode(block.arguments)
    written = arguments.get(INPUT)
    return written if isinstance(written, str) else block.arguments
