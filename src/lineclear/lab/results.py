"""What servers answered, one JSON object a line: what the judge reads, whoever wrote it.

    {"id": "7", "request": {...}, "text": "...", "error": null, "known_answer": null, "seconds": 0.8}

`request` is the body of a chat completion if it has `messages`, and of a completion else. Where the answer came with
log-probabilities its text is that of its tokens, markup of tool calls included; else it is the message's.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from lineclear.base.errors import ConfigError
from lineclear.lab.judging import Reference, ReferenceToken


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One request and its answer."""

    id: str
    request: dict[str, Any]
    text: str
    error: str | None = None
    known_answer: str | None = None
    seconds: float | None = None
    """From the request to the end of the answer."""


_DECODER = msgspec.json.Decoder(Result)


def read_results(path: Path) -> Iterator[Result]:
    """Yield the results of a file.

    Raises: ConfigError for a line that is none, with its number, or an id that is there twice.
    """
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                result = _DECODER.decode(line)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{path} line {number}", line[:80].decode(errors="replace"), str(error)) from None
            if result.id in seen:
                raise ConfigError(f"{path} line {number}", result.id, "an id that is not there before")
            seen.add(result.id)
            yield result


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write results, one a line."""
    with path.open("wb") as file:
        for result in results:
            file.write(msgspec.json.encode(result) + b"\n")


def api_path(request: dict[str, Any]) -> str:
    """Where a request goes."""
    return "/v1/chat/completions" if "messages" in request else "/v1/completions"


def prompt_text(request: dict[str, Any]) -> str:
    """All that a request says, as text; token ids of a prompt as numbers."""
    if "messages" in request:
        return json.dumps([request["messages"], request.get("tools")], ensure_ascii=False)
    return str(request.get("prompt", ""))


def is_greedy(request: dict[str, Any]) -> bool:
    """Whether a request has only one right answer."""
    return request.get("temperature") == 0 and request.get("n", 1) == 1


def answer_text(body: dict[str, Any]) -> str:
    """The text of an answer's only choice: its tokens' where they are there."""
    tokens = _tokens(body)
    if tokens:
        return "".join(token.text for token in tokens)
    choice = body["choices"][0]
    if "message" not in choice:
        return str(choice.get("text") or "")
    message = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return str(message.get("content") or "") + (json.dumps(calls) if calls else "")


def read_reference(body: dict[str, Any], *, with_tokens: bool) -> Reference:
    """What a request alone was answered; without `with_tokens`, as it is without log-probabilities."""
    tokens = _tokens(body)
    if with_tokens and tokens:
        return Reference("".join(token.text for token in tokens), tokens)
    text = answer_text(_without_logprobs(body))
    is_aligned = text == "".join(token.text for token in tokens)
    return Reference(text, tokens if is_aligned else ())


def _without_logprobs(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"choices": [{**choice, "logprobs": None} for choice in body["choices"]]}


def _tokens(body: dict[str, Any]) -> tuple[ReferenceToken, ...]:
    logprobs = body["choices"][0].get("logprobs")
    if not logprobs:
        return ()
    if "content" in logprobs:
        return tuple(
            ReferenceToken(
                entry["token"],
                entry["logprob"],
                tuple((rival["token"], rival["logprob"]) for rival in entry.get("top_logprobs") or ()),
            )
            for entry in logprobs["content"] or ()
        )
    tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
    return tuple(
        ReferenceToken(text, logprob, tuple(cast("dict[str, float]", top or {}).items()))
        for text, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    )
