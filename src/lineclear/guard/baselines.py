"""Baselines: how drafts of one model fare in healthy traffic, and from where on that is to be doubted.

    file: {"version": 1, "model": …, "draft_tokens": k, "budget": …, "greedy": {…}, "sampled": {…}, "digest": …}

The digest is of everything else; a file that was cut or edited is refused, and so is one of another model or of fewer
drafts than are served. `learn` makes them from what healthy sequences did, by sampling mode:

- acceptance by position, of those drafts whose predecessors were accepted;
- a threshold for the CUSUM of its log-likelihood ratio (`calibrated`), so that false alarms stay within the budget;
- the longest self-repetition that was neither copied from the prompt nor wrong.

The threshold: each sequence has one highest level. High levels of a CUSUM are exponentially distributed, so the tail of
those peaks is fitted, and followed to where the budget allows one; it is never below the highest level that was seen.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from lineclear.base.errors import ConfigError
from lineclear.guard.evidence import MAX_PERIOD, Verify, occurs_before, repeated_end
from lineclear.protocol.numbers import Count, Positive

BASELINES_VERSION: Final = 1

ODDS_RATIO: Final = 6.0
"""A broken sequence's odds of acceptance are taken to be so many times lower: between what is caught late, and what
varies from one healthy request to the next."""

LOOP_CHECK_TOKENS: Final = 16
"""Self-repetition is looked for once in so many tokens."""

LOOP_MARGIN: Final = 2.0
"""A loop is so many times longer than what healthy output was seen to repeat."""

MIN_LOOP_TOKENS: Final = 96
"""No shorter repetition is a loop, whatever was seen."""

_TAIL_SHARE: Final = 0.1
"""Of the peaks: what the tail is fitted to."""

_Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
_Above0 = Annotated[float, msgspec.Meta(gt=0)]


class ModeBaselines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sampling mode's."""

    accept_by_position: list[_Share]
    """Of the drafts at a position whose predecessors were accepted, those that were accepted themselves."""
    threshold: _Above0
    """Of the CUSUM."""
    loop_tokens: Positive
    """From so many repeated tokens on an output that copies nothing is a loop."""
    num_sequences: Count
    num_tokens: Count


class Baselines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of one model and number of drafts."""

    version: int = BASELINES_VERSION
    model: str
    """The checkpoint's digest."""
    draft_tokens: Positive
    alarms_per_million: _Above0
    """The budget: false alarms per million healthy tokens."""
    greedy: ModeBaselines
    sampled: ModeBaselines


@dataclass(frozen=True, slots=True)
class HealthySequence:
    """What one healthy sequence did."""

    tokens: "array[int]"
    """Prompt and output."""
    num_prompt_tokens: int
    verifies: Sequence[Verify]


def encode_baselines(baselines: Baselines) -> bytes:
    """Write a file's content."""
    fields = msgspec.to_builtins(baselines)
    content = msgspec.json.encode({**fields, "digest": _digest(fields)}, order="sorted")
    return msgspec.json.format(content, indent=2) + b"\n"


def decode_baselines(content: bytes, *, path: str, model: str, draft_tokens: int) -> Baselines:
    """Read a file's content for one model and number of drafts.

    Raises: ConfigError naming `guard_baselines` if it is damaged, of another version or model, or of fewer drafts.
    """
    try:
        fields = msgspec.json.decode(content, type=dict[str, object])
        digest = fields.pop("digest", None)
        version = fields.get("version")
        if version != BASELINES_VERSION:
            raise _refusal(path, f"version {BASELINES_VERSION}; it has {version}")
        if digest != _digest(fields):
            raise _refusal(path, "a file as it was written: its digest does not fit")
        baselines = msgspec.convert(fields, Baselines)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise _refusal(path, f"baselines of this version: {error}") from None
    if baselines.model != model:
        raise _refusal(path, f"baselines of the served model, {model}; they are of {baselines.model}")
    if baselines.draft_tokens < draft_tokens:
        raise _refusal(path, f"baselines of {draft_tokens} drafts or more; they have {baselines.draft_tokens}")
    return baselines


def learn(sequences: Iterable[HealthySequence], *, draft_tokens: int, alarms_per_million: float) -> ModeBaselines:
    """Make one mode's baselines.

    Raises: ConfigError if the traffic has too few drafts to say anything.
    """
    healthy = list(sequences)
    num_tokens = sum(each.verifies[-1].num_tokens for each in healthy if each.verifies)
    accept = _accept_by_position(healthy, draft_tokens)
    peaks = [_peak(each.verifies, llr_table(accept)) for each in healthy]
    longest = max((_longest_repetition(each) for each in healthy), default=0)
    return ModeBaselines(
        accept_by_position=accept,
        threshold=_threshold(peaks, num_tokens, alarms_per_million),
        loop_tokens=max(MIN_LOOP_TOKENS, math.ceil(LOOP_MARGIN * longest)),
        num_sequences=len(healthy),
        num_tokens=num_tokens,
    )


def llr_table(accept_by_position: Sequence[float]) -> list[list[float]]:
    """Log-likelihood ratios of a verify, broken against healthy. Shapes: [num_proposed][num_accepted]."""
    kept, lost = [0.0], []
    for healthy in accept_by_position:
        broken = healthy / (healthy + ODDS_RATIO * (1 - healthy))
        lost.append(kept[-1] + math.log((1 - broken) / (1 - healthy)))
        kept.append(kept[-1] + math.log(broken / healthy))
    return [
        [kept[count] if count == num_proposed else lost[count] for count in range(num_proposed + 1)]
        for num_proposed in range(len(accept_by_position) + 1)
    ]


def _accept_by_position(healthy: Sequence[HealthySequence], draft_tokens: int) -> list[float]:
    reached, accepted = [0] * draft_tokens, [0] * draft_tokens
    for each in healthy:
        for num_proposed, num_accepted, _ in each.verifies:
            for position in range(min(num_proposed, num_accepted + 1)):
                reached[position] += 1
                accepted[position] += position < num_accepted
    if not draft_tokens or not min(reached):
        raise ConfigError("draft_tokens", draft_tokens, "as many as healthy traffic has drafts of, at every position")
    # One success and one failure more keep a share off 0 and 1, of which no ratio can be taken.
    return [(kept + 1) / (count + 2) for kept, count in zip(accepted, reached, strict=True)]


def _peak(verifies: Iterable[Verify], table: Sequence[Sequence[float]]) -> float:
    level = highest = 0.0
    for num_proposed, num_accepted, _ in verifies:
        level = max(0.0, level + table[num_proposed][num_accepted])
        highest = max(highest, level)
    return highest


def _threshold(peaks: Sequence[float], num_tokens: int, alarms_per_million: float) -> float:
    ordered = sorted(peaks, reverse=True)
    num_tail = max(2, math.ceil(len(ordered) * _TAIL_SHARE))
    tail = ordered[:num_tail]
    base = ordered[min(num_tail, len(ordered) - 1)]
    scale = max(sum(peak - base for peak in tail) / len(tail), 0.1)
    allowed = alarms_per_million * num_tokens / 1e6
    return max(base + scale * math.log(max(len(tail) / allowed, 1.0)), ordered[0] + 0.1)


def _longest_repetition(each: HealthySequence) -> int:
    """The longest run of its output, as the detector would have seen it, that was not copied from its prompt."""
    longest, start, num_all = 0, each.num_prompt_tokens, len(each.tokens)
    for end in range(start + MIN_LOOP_TOKENS // 2, num_all + 1, LOOP_CHECK_TOKENS):
        seen = each.tokens[:end]
        run = repeated_end(seen, start, range(1, MAX_PERIOD + 1), MIN_LOOP_TOKENS // 2)
        if run.length > longest and not occurs_before(seen, start, seen[end - run.length :]):
            longest = run.length
    return longest


def _digest(fields: object) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:32]


def _refusal(path: str, allowed: str) -> ConfigError:
    return ConfigError("guard_baselines", path, allowed)
