"""Streams of completions, however the bytes are cut, and what is wrong with those that are none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import ConfigError
from lineclear.lab.streams import Answer, parse_server

BODY = (
    b': a comment\n\ndata: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"b"}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}'
    b"\n\ndata: [DONE]\n\n"
)


def response(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def fed(*pieces: bytes) -> Answer:
    answer = Answer(lambda: 5.0)
    for piece in pieces:
        answer.feed(piece)
    return answer


@given(st.lists(st.integers(0, len(response(BODY))), max_size=6).map(sorted))
def test_the_answer_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole, bounds = response(BODY), [0, *cuts, len(response(BODY))]
    answer = fed(*(whole[start:end] for start, end in pairwise(bounds) if start < end))
    assert (answer.num_pieces, answer.first_token_s, answer.error, answer.is_over) == (2, 5.0, None, True)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)
    assert answer.usage.prompt_tokens_details == {"cached_tokens": 3}


@given(st.binary(min_size=1, max_size=60))
def test_noise_is_no_answer(noise: bytes) -> None:
    answer = fed(noise, b"\r\n\r\n")
    answer.end_of_connection()
    assert answer.error is not None
    assert answer.num_pieces == 0


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (response(b'{"error":"full"}', b"429 Too Many"), 'HTTP 429: {"error":"full"}'),
        (response(b'data: {"error":{"message":"no"}}\n\n'), "error in the stream: {'message': 'no'}"),
        (response(b"data: nonsense\n\n"), "not a stream of completions"),
        (response(BODY)[:-30], "the connection ended within the answer"),
        (b"HTTP/1.1 503 No\r\nConnection: close\r\n\r\nbusy", "HTTP 503: busy"),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, error: str) -> None:
    answer = fed(raw)
    if not answer.is_over:
        answer.end_of_connection()
    assert answer.error is not None
    assert answer.error.startswith(error)


def test_servers() -> None:
    server = parse_server("http://127.0.0.1:8000", "key")
    assert (server.host, server.port, server.path, server.tls) == ("127.0.0.1", 8000, "/v1", None)
    assert b"POST /v1/completions HTTP/1.1\r\n" in server.head(3)
    assert b"Content-Length: 3\r\n" in server.head(3)
    assert parse_server("https://x/api/v1/", None).path == "/api/v1"
    for url in ("", "ftp://x", "http://", "http://x:port"):
        with pytest.raises(ConfigError, match="against"):
            parse_server(url, None)
