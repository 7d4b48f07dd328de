"""The bounded form of `python -m tests.e2e.handoff_stress`."""

from importlib.util import find_spec

import pytest

from tests.e2e.handoff_stress import stress

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("mover", "num_ranks", "num_requests"), [("shm", 1, 120), ("nixl", 1, 120), ("shm", 2, 60)])
def test_no_answer_is_wrong_and_nothing_stays_behind(mover: str, num_ranks: int, num_requests: int) -> None:
    if mover == "nixl" and find_spec("nixl_cu13") is None:
        pytest.skip("nixl is not installed: pip install 'lineclear[nixl]'")
    kind = mover if num_ranks == 1 else f"{mover}_ranks"
    measured = stress(num_requests, mover, num_ranks=num_ranks)
    figures = {figure.name.removeprefix(f"handoff_stress_{kind}_"): figure.value for figure in measured}
    assert figures["answers_wrong"] == figures["errors"] == 0
    assert (
        sum(figures[name] for name in ("answers_right", "clients_left", "refused", "timed_out")) == figures["requests"]
    )
    assert figures["handoffs_done"] >= num_requests / 2
    assert figures["handoffs_failed"] > 0  # clients have left in the middle of one
    assert figures["blocks_held_after"] == figures["blocks_quarantined_after"] == 0
