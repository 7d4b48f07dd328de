"""`lineclear serve` with host and disk tiers: the same answers, found again after eviction and after a restart."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lineclear.bundled.corpus import load_corpus
from tests.e2e.asking import check_invariants
from tests.e2e.processes import PATIENCE_SECONDS, Program, running

pytestmark = pytest.mark.e2e

SERVE = ("serve", "--port", "0", "--max-total-tokens", "2048")
NUM_PROMPTS = 6
PROMPT_CHARS = 1200
"""Some 400 tokens: more than the pool holds, all together."""
LONG_PROMPT_CHARS = 3600
"""Some 1,500 tokens: a hundred files, a second's work for a slow disk, when the answer is there."""


@contextmanager
def serving(*flags: str, module: str = "lineclear") -> Iterator[tuple[Program, str]]:
    with running(["-m", module, *SERVE, *flags]) as program:
        yield program, program.wait_for(r"ready on (http://\S+)")[1]
        program.signal(signal.SIGINT)
        assert program.wait() == 0


def prompts() -> list[str]:
    text = max(load_corpus().held_out, key=len)
    return [text[start : start + PROMPT_CHARS] for start in range(0, NUM_PROMPTS * PROMPT_CHARS, PROMPT_CHARS)]


def ask_all(url: str) -> list[str]:
    return [ask(url, prompt)["choices"][0]["text"] for prompt in prompts()]


def ask(url: str, prompt: str) -> dict[str, Any]:
    body = {"model": "lineclear-tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    response.raise_for_status()
    return response.json()


def total(url: str, metric: str, label: str) -> float:
    """A metric summed over the workers."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    found = [line for line in lines if line.startswith(f"{metric}{{") and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with serving("--colocated") as (_, url):
        return ask_all(url)


def test_prompts_come_back_from_the_host_and_after_a_restart_from_disk(expected: list[str], tmp_path: Path) -> None:
    flags = ("--colocated", "--host-cache-gib", "0.05", "--disk-cache-dir", str(tmp_path), "--prefetch-policy", "wait")
    with serving(*flags) as (_, url):
        assert ask_all(url) == expected
        assert ask_all(url) == expected
        check_invariants(url)
        assert total(url, "lineclear_tier_hit_tokens_total", 'tier="host"') > 500
        states = {
            state: total(url, "lineclear_tier_blocks", f'state="{state}",tier="device"')
            for state in ("free", "held", "quarantined")
        }
        assert sum(states.values()) == 128
        assert total(url, "lineclear_tier_moved_bytes_total", 'copy="load"') > 0
    with serving(*flags) as (_, url):
        assert ask_all(url) == expected
        assert total(url, "lineclear_tier_hit_tokens_total", 'tier="disk"') > 500
        check_invariants(url)


def test_prefill_and_decode_share_a_directory(expected: list[str], tmp_path: Path) -> None:
    flags = ("--min-handoff-tokens", "64", "--host-cache-gib", "0.05", "--disk-cache-dir", str(tmp_path))
    with serving(*flags) as (_, url):
        for _ in range(2):
            assert ask_all(url) == expected
        check_invariants(url)
        assert total(url, "lineclear_handoffs_total", 'outcome="done"') > 0
        assert total(url, "lineclear_tier_hit_tokens_total", 'tier="host"') > 500


@pytest.mark.parametrize("roles", [("--colocated",), ("--min-handoff-tokens", "64")], ids=["colocated", "apart"])
def test_what_is_on_its_way_to_disk_gets_there_before_the_service_ends(roles: tuple[str, ...], tmp_path: Path) -> None:
    flags = (*roles, "--host-cache-gib", "0.05", "--disk-cache-dir", str(tmp_path), "--prefetch-policy", "wait")
    prompt = "".join(prompts())[:LONG_PROMPT_CHARS]
    with serving(*flags, module="tests.e2e.slow_disk") as (_, url):
        answer = ask(url, prompt)
        num_whole_blocks = answer["usage"]["prompt_tokens"] // 16
    assert len(list(tmp_path.rglob("*.kv"))) >= num_whole_blocks
    assert not list(tmp_path.rglob("*.tmp"))
    with serving(*flags) as (_, url):
        again = ask(url, prompt)
        assert again["choices"] == answer["choices"]
        assert total(url, "lineclear_tier_hit_tokens_total", 'tier="disk"') >= 16 * (num_whole_blocks - 1)
