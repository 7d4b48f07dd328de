"""Which requests are of one conversation: a turn's prompt begins with the prompts of the turns before it; pure.

A turn repeats what was answered before it, so the words of one turn stand in all later ones: as donors of foreign text
they are one, and none of them is foreign to another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MIN_PROMPT_LEN = {str: 64, int: 16, bytes: 1}
"""Characters, tokens, messages: a shorter prompt with which others begin is no turn of theirs; `def` is anybody's."""


def families(requests: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return each request's family, named by the id of the one with the shortest prompt.

    Of equal prompts the id that comes first gives the name. Cost: that of sorting the prompts.
    """
    by_kind: dict[tuple[type, type], list[tuple[Sequence[Any], int, str]]] = {}
    for number, (request_id, request) in enumerate(requests.items()):
        prompt = _sequence(request)
        kind = type(prompt), type(prompt[0]) if prompt else type(None)
        by_kind.setdefault(kind, []).append((prompt, number, request_id))
    found: dict[str, str] = {}
    for (_, element), prompts in by_kind.items():
        min_len = MIN_PROMPT_LEN.get(element, 1)
        root: Sequence[Any] | None = None
        name = ""
        for prompt, _, request_id in sorted(prompts):  # what begins with another comes right behind it
            if root is None or not (prompt == root or (len(root) >= min_len and prompt[: len(root)] == root)):
                root, name = prompt, request_id
            found[request_id] = name
    return found


def _sequence(request: Mapping[str, Any]) -> Sequence[Any]:
    """A prompt as messages, token ids or characters, as something that is sorted."""
    if "messages" in request:
        tools = msgspec.json.encode(request.get("tools"))
        return (tools, *(msgspec.json.encode(message, order="sorted") for message in request["messages"]))
    prompt = request.get("prompt", "")
    return prompt if isinstance(prompt, str) else tuple(prompt)
