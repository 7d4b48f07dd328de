"""The cache of encoded texts is bounded and never wrong."""

from hypothesis import given
from hypothesis import strategies as st

from lineclear.gateway.run_cache import MIN_RUN_LEN, RunCache
from lineclear.gateway.tokenization import Tokenization
from tests.unit.gateway.tiny_text import build_tokenizer

TOKENIZATION = Tokenization(build_tokenizer())


def run(name: str) -> str:
    return name * MIN_RUN_LEN


def test_the_least_recently_used_text_goes_first() -> None:
    cache = RunCache(2 * MIN_RUN_LEN)
    for name in "ab":
        cache.keep(run(name), [ord(name)])
    assert cache.find(run("a")) == [97]
    cache.keep(run("c"), [99])
    assert [cache.find(run(name)) for name in "abc"] == [[97], None, [99]]
    statistics = cache.statistics()
    assert (statistics.num_runs, statistics.num_characters) == (2, 2 * MIN_RUN_LEN)
    assert (statistics.num_hits, statistics.num_misses) == (3, 1)


def test_a_text_counts_once() -> None:
    cache = RunCache(10 * MIN_RUN_LEN)
    cache.keep(run("a"), [1])
    cache.keep(run("a"), [1])
    assert cache.statistics().num_characters == MIN_RUN_LEN


def test_short_and_huge_texts_are_not_kept() -> None:
    cache = RunCache(2 * MIN_RUN_LEN)
    cache.keep("short", [1])
    cache.keep(run("abc"), [1])
    assert cache.statistics().num_runs == 0


@given(texts=st.lists(st.sampled_from([run("a"), run("bc"), "x", "<|user|>"]), max_size=6))
def test_tokens_do_not_depend_on_what_was_encoded_before(texts: list[str]) -> None:
    text = "<|user|>".join(texts)
    fresh = Tokenization(build_tokenizer())
    assert TOKENIZATION.encode_rendered(text, "\ufdd0") == fresh.encode_rendered(text, "\ufdd0")


def test_encoded_text_may_be_changed_by_its_owner() -> None:
    TOKENIZATION.encode_text(run("own")).clear()
    assert TOKENIZATION.encode_text(run("own")) != []
