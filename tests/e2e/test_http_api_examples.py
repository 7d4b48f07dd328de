"""The commands of `docs/http-api.md`, run against `lineclear serve`, and the answers that the page shows."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import PATIENCE_SECONDS, running

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc and pidfd"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
EXAMPLE = re.compile(r"^```sh\n(?P<commands>.*?)^```\n```json\n(?P<answers>.*?)^```\n", re.MULTILINE | re.DOTALL)
URL = "http://127.0.0.1:8000"
ANYTHING = "..."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "131072"]) as program:
        yield program.wait_for(r"lineclear ready on (http://\S+)")[1]


@pytest.mark.parametrize("example", list(EXAMPLE.finditer(PAGE)), ids=lambda example: example["commands"][:70])
def test_an_example_answers_as_shown(url: str, example: re.Match[str]) -> None:
    assert URL in example["commands"]
    run = subprocess.run(
        ["bash", "-ec", example["commands"].replace(URL, url)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    shown, answered = read_values(example["answers"]), read_values(run.stdout)
    assert len(shown) == len(answered)
    for expected, value in zip(shown, answered, strict=True):
        assert differences(expected, value, "") == []


def read_values(text: str) -> list[Any]:
    """JSON values, one after the other."""
    decoder, values, text = json.JSONDecoder(), [], text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


def differences(shown: Any, value: Any, path: str) -> list[str]:
    """Where a value differs from what is shown of it."""
    if shown == ANYTHING:
        return []
    if isinstance(shown, dict) and isinstance(value, dict):
        missing = [f"{path}.{name} is missing" for name in shown if name not in value]
        inner = (differences(shown[name], value[name], f"{path}.{name}") for name in shown if name in value)
        return missing + [difference for found in inner for difference in found]
    if isinstance(shown, list) and isinstance(value, list) and len(shown) == len(value):
        pairs = enumerate(zip(shown, value, strict=True))
        inner = (differences(*pair, f"{path}[{idx}]") for idx, pair in pairs)
        return [difference for found in inner for difference in found]
    return [] if shown == value else [f"{path}: {value!r} is not {shown!r}"]
