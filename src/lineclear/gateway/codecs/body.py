"""Bodies of OpenAI's APIs: the fields they share, and how a body that makes no sense is refused.

Unknown fields are ignored, as clients of many servers expect. Fields that would change the answer in a way that is not
served are refused by name: see `unserved`.
"""

import re
from typing import Annotated, Any, TypeVar, cast

import msgspec

from lineclear.gateway.errors import InvalidRequestError, refuse

_PATH = re.compile(r" - at (?:`key` in )?`\$?\.?(?P<path>.*?)(?:\[\.\.\.\])?`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")

_EXPECTED = re.compile(r"Expected (?P<allowed>.+?)(?:, got (?P<got>.+))?")
_GOT = re.compile(r"^got [^,]*, allowed")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_TYPE_NAME = re.compile(r"\b(?:str|float|int|bool)\b")
_JSON_TYPES = {"str": "string", "float": "number", "int": "integer", "bool": "boolean"}
"""The decoder's names of types, and JSON's."""

MAX_SHOWN_LEN = 80
"""Of a value in an error's text."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

BodyT = TypeVar("BodyT")

MAX_SEPARATORS = 4 * 1024 * 1024
"""Bounds the number of values before they are made: an empty object is two characters, and 64 bytes of memory. Text has
some too, and a prompt of a million tokens fewer than this."""

MAX_BIASES = 8192
"""Each choice takes its own copy along, and applies it to every token."""

JsonValue = Any
"""A value that is looked at later, or only passed on."""

StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
StopStrings = StopString | Annotated[list[StopString], msgspec.Meta(max_length=16)]
LogitBias = Annotated[dict[int, float], msgspec.Meta(max_length=MAX_BIASES)]


class StreamOptions(msgspec.Struct):
    """What a stream says besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class LineclearOptions(msgspec.Struct):
    """Lineclear's own wishes."""

    draft_figures: bool = False
    """Answer how the drafts of each choice fared."""


class SamplingBody(msgspec.Struct, kw_only=True):
    """How tokens are chosen: what every API here takes, whichever of these its own clients know."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: LogitBias | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None


class GenerationBody(SamplingBody, kw_only=True):
    """The fields that all generating APIs of OpenAI share, and those that servers of open models add."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: JsonValue = None
    skip_special_tokens: bool | None = None
    lineclear: LineclearOptions | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, whichever way they were given."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def want_draft_figures(self) -> bool:
        """Whether the answer tells how the drafts fared."""
        return self.lineclear is not None and self.lineclear.draft_figures


def decode_body(body: bytes, kind: type[BodyT]) -> BodyT:
    """Read a JSON body.

    Raises:
        InvalidRequestError: It is not JSON, or has too many values, or a field has the wrong type.
    """
    _refuse_too_many_values(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", None, "invalid_json") from None
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), value=_decoded(body)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        hint = " (a string holds half of a surrogate pair?)" if _SURROGATE.search(body) else ""
        raise InvalidRequestError(f"the body is not valid JSON: {error}{hint}", None, "invalid_json") from None


def _decoded(body: bytes) -> object:
    """The body without types; None if what follows its first fault is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (RecursionError, msgspec.DecodeError, UnicodeError):
        return None


def _refuse_too_many_values(body: bytes) -> None:
    if len(body) <= MAX_SEPARATORS:
        return
    num_separators = sum(map(body.count, (b",", b"[", b"{")))
    if num_separators > MAX_SEPARATORS:
        raise refuse("body", f"{num_separators} of the characters , [ {{", f"at most {MAX_SEPARATORS}")


def convert_field(value: object, kind: type[BodyT], path: str) -> BodyT:
    """Read a part of a body that was decoded without a type.

    Raises:
        InvalidRequestError: It has the wrong shape.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), path, value=value) from None


def _wrong_field(message: str, parent: str = "", *, value: object) -> InvalidRequestError:
    """The error of the decoder in our words; `value` is what the path in it starts from."""
    found = _PATH.search(message)
    path = found["path"] if found else ""
    reason = _in_our_words(message[: found.start()] if found else message)
    shown = _scalar_at(value, path) if found and "[...]" not in found[0] and "`key` in" not in found[0] else None
    if shown is not None:
        reason = _GOT.sub(lambda _: f"got {shown}, allowed", reason)
    missing = _MISSING.search(message)
    names = [name for name in (parent, path, missing["name"] if missing else "") if name]
    param = ".".join(names).replace(".[", "[") or None
    return InvalidRequestError(f"{param}: {reason}" if param else reason, param, "invalid_type")


def _in_our_words(reason: str) -> str:
    if _MISSING.search(reason):
        return "is missing"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return reason
    allowed = _TYPE_NAME.sub(lambda match: _JSON_TYPES[match[0]], expected["allowed"])
    got = expected["got"] or _out_of_bounds(allowed)
    return f"got {_JSON_TYPES.get(got.strip('`'), got)}, allowed: {allowed}".replace("`", "")


def _out_of_bounds(allowed: str) -> str:
    if "of length >=" in allowed:
        return "a shorter one"
    return "a longer one" if "of length <=" in allowed else "another value"


def _scalar_at(value: object, path: str) -> str | None:
    """A string, number, truth value or null in a decoded body, as JSON; None where there is something else."""
    for index, name in _STEP.findall(path):
        if index and isinstance(value, list):
            value = cast("list[object]", value)[int(index)]
        elif name and isinstance(value, dict) and name in value:
            value = cast("dict[str, object]", value)[name]
        else:
            return None
    if value is not None and not isinstance(value, str | int | float):
        return None
    shown = msgspec.json.encode(value[: MAX_SHOWN_LEN + 1] if isinstance(value, str) else value).decode()
    return shown if len(shown) <= MAX_SHOWN_LEN else f"{shown[:MAX_SHOWN_LEN]}…"
