import pytest

from lineclear.config.suggestion import did_you_mean

KNOWN = ["--port", "--seed", "-h"]


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("--prot", " (did you mean --port?)"), ("-port", " (did you mean --port?)"), ("--x", ""), ("--nonsense", "")],
)
def test_the_nearest_name_is_suggested_and_a_shared_prefix_brings_none_nearer(word: str, suggestion: str) -> None:
    assert did_you_mean(word, KNOWN, prefix="--") == suggestion
