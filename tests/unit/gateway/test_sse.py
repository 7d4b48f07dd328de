"""Events stay on one line, by anybody's idea of a line."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.sse import KEEP_ALIVE, encode_json, event


@given(text=st.text())
@example(text="a\u2028b\u2029c\u0085d\r\n\x1c\x0b")
def test_any_text_is_one_line_and_comes_back(text: str) -> None:
    data = encode_json({"text": text}).decode()
    assert len(data.splitlines()) == 1
    assert json.loads(data) == {"text": text}


def test_frames() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert KEEP_ALIVE.startswith(b":")
    assert KEEP_ALIVE.endswith(b"\n\n")
