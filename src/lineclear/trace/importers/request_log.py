"""OpenAI-style request logs: one JSON object a line, the client's request and what came of it.

```
{"timestamp": 1764550000.5, "session": "…", "request": {"messages": […]}, "response": {"usage": {…}}, "duration_s": 2.5}
```

`timestamp` is in seconds since 1970, or an ISO date and time. `request` may be called `body`, and the response may
have one more `body` around it, as in files of the Batch API. `session`, `response` and `duration_s` may be missing.
"""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Ended, EndReason, Event, Sampling
from lineclear.trace.importers.rows import parse_object, take_int, take_number
from lineclear.trace.importers.text_blocks import BLOCK_LEN, text_blocks, text_len

_REASONS: dict[object, EndReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_use"}


class RequestLogParser:
    """Rows to events, with times since 1970.

    A prompt's length is `usage.prompt_tokens` where the row has it, else that of `text_blocks`; blocks are those of
    `text_blocks` as far as the length goes.
    """

    block_len = BLOCK_LEN
    source = "request-log"

    def parse(self, number: int, line: str) -> list[Event]:
        """See `RowParser`."""
        row = parse_object(number, line)
        body = _object(number, row, "request" if "request" in row else "body")
        response = _response(number, row)
        at_s, text = _seconds(number, row), _prompt_text(number, body)
        usage = _object(number, response, "usage") if response.get("usage") is not None else {}
        blocks = text_blocks(text)
        prompt_len = take_int(number, usage, "prompt_tokens", 1) if "prompt_tokens" in usage else text_len(text)
        output_len = take_int(number, usage, "completion_tokens", 0) if "completion_tokens" in usage else 0
        ended_s = None if row.get("duration_s") is None else at_s + take_number(number, row, "duration_s")
        limit = next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)
        return [
            Arrived(
                at_s=at_s,
                request=str(number),
                session=row["session"] if isinstance(row.get("session"), str) else "",
                prompt_len=prompt_len,
                blocks=blocks[: prompt_len // BLOCK_LEN],
                max_output_len=None if limit is None else take_int(number, body, limit, 0),
                sampling=_sampling(number, body),
            ),
            Ended(at_s=ended_s, request=str(number), output_len=output_len, reason=_reason(response)),
        ]


def _object(number: int, row: dict[str, Any], name: str) -> dict[str, Any]:
    value: object = row.get(name)
    if not isinstance(value, dict):
        raise TraceError(number, name, value, "an object")
    return cast("dict[str, Any]", value)


def _response(number: int, row: dict[str, Any]) -> dict[str, Any]:
    if row.get("response") is None:
        return {}
    response = _object(number, row, "response")
    return _object(number, response, "body") if response.get("body") is not None else response


def _seconds(number: int, row: dict[str, Any]) -> float:
    value: object = row.get("timestamp")
    if not isinstance(value, str):
        return take_number(number, row, "timestamp")
    try:
        moment = datetime.fromisoformat(value)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise TraceError(number, "timestamp", value, "seconds since 1970, or a date and time in ISO form")
    return seconds


def _prompt_text(number: int, body: dict[str, Any]) -> str:
    prompt: object = body.get("prompt")
    if isinstance(prompt, str):
        return prompt
    for name in ("messages", "input"):
        if isinstance(body.get(name), str | list):
            return _rendered(body.get("tools")) + _rendered(body.get("instructions")) + _rendered(body[name])
    raise TraceError(number, "request", sorted(body), "`messages`, `prompt` or `input`")


def _rendered(value: object) -> str:
    if value is None:
        return ""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return "".join(msgspec.json.encode(item).decode() + "\n" for item in items)


def _sampling(number: int, body: dict[str, Any]) -> Sampling:
    try:
        return msgspec.convert({name: body.get(name) for name in Sampling.__struct_fields__}, Sampling)
    except msgspec.ValidationError as error:
        raise TraceError(number, "request", "sampling parameters", str(error)) from None


def _reason(response: dict[str, Any]) -> EndReason:
    try:
        choices = msgspec.convert(response.get("choices", []), list[dict[str, Any]])
    except msgspec.ValidationError:
        return "unknown"
    reason = choices[0].get("finish_reason") if choices else None
    return _REASONS.get(reason, "unknown") if isinstance(reason, str) else "unknown"
