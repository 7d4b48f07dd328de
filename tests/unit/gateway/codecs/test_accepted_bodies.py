"""Whatever a codec accepts, it can answer: as a stream by its API's rules, and in one piece that says the same."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from lineclear.gateway.errors import InvalidRequestError, NotFoundError
from lineclear.gateway.generation import ApiCall
from tests.unit.gateway.surfaces import MESSAGES, RESPONSES, Surface, answer, prepare
from tests.unit.gateway.test_choice import spell_out
from tests.unit.gateway.test_fuzz import BODIES
from tests.unit.gateway.test_parser_faults import MODEL, steps

PATCH: dict[str, Any] = {"type": "custom", "name": "f", "format": None}


def says(body: dict[str, Any]) -> str:
    """Text, and a call of each tool that has a name."""
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    names = [tool.get("name") for tool in tools]
    calls = [f"<tool_call>{name}<arg_key>input</arg_key><arg_value>1</arg_value></tool_call>" for name in names]
    return "hm</think>" + "".join(calls) + "done"


def prepare_if_possible(surface: Surface, body: dict[str, Any]) -> ApiCall | None:
    try:
        return prepare(surface, body, MODEL)
    except (InvalidRequestError, NotFoundError):
        return None


@pytest.mark.parametrize("surface", [MESSAGES, RESPONSES], ids=lambda surface: surface.name)
def test_what_is_accepted_is_answered(surface: Surface) -> None:
    @settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
    @given(body=BODIES[surface.path])
    @example(body={"input": "x", "messages": [{"role": "user", "content": "x"}], "tools": [PATCH]})
    @example(body={"input": "x", "tools": [PATCH]})
    @example(body={"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [PATCH, PATCH]}]})
    @example(body={"messages": [{"role": "user"}], "tools": [{"name": "f", "defer_loading": True}]})
    def check(body: dict[str, Any]) -> None:
        call = prepare_if_possible(surface, body)
        if call is None:
            return
        token_ids = spell_out(says(body))
        stream, whole = answer(call, MODEL, steps(token_ids, range(len(token_ids)), "stop"))
        assert surface.read_stream(stream) == surface.read_whole(whole)

    check()
