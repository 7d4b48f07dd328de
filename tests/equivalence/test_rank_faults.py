"""A rank that fails, wherever it does, is the error of that step's sequences on all ranks; the next step is right."""

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from lineclear.engine.runner import NOT_FINITE
from lineclear.parallel.accord import OTHER_PLAN
from lineclear.parallel.build import KvLayout
from lineclear.parallel.meter import COMPUTING, Happening, Span
from lineclear.testing.ranks.group import RankGroup
from tests.equivalence.rank_engines import alone, ask, group, rounds

LAYOUTS: tuple[KvLayout, ...] = ("replicated", "layersplit")
PROMPTS = rounds()[1][2:5]
SIZE = 3


class FailAt:
    """A span sink that raises at the given happening of one rank's own work, counted from when it is armed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self.has_fired = False

    def arm(self, left: int) -> None:
        self._left = left
        self.has_fired = False

    def __call__(self, span: Span) -> None:
        is_own = span.track == COMPUTING and (span.happening is Happening.COMPUTE or span.layer is not None)
        if self._left is None or not (is_own or span.happening in {Happening.LOAD, Happening.FILL}):
            return
        with self._lock:
            self._left -= 1
            if self._left >= 0 or self.has_fired:
                return
            self.has_fired = True
        raise OSError(f"fails at {span.happening.value} {span.layer} {span.part}")


@contextmanager
def failing_group(kv_layout: KvLayout) -> Iterator[tuple[RankGroup, list[FailAt]]]:
    faults = [FailAt() for _ in range(SIZE)]
    with group(SIZE, kv_layout, sink_of=lambda rank: faults[rank]) as ranks:
        yield ranks, faults


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_wherever_a_rank_fails_all_have_its_error_and_go_on(kv_layout: KvLayout) -> None:
    expected = alone()[1][2:5]
    with failing_group(kv_layout) as (ranks, faults):
        ask(ranks.engine, PROMPTS, 1000)  # so that there is a prefix to bring
        left = 0
        while True:
            rank = left % SIZE
            faults[rank].arm(left)
            answers = ask(ranks.engine, PROMPTS, 2000 + 10 * left)
            if not faults[rank].has_fired:
                break
            errors = {each.error for each in answers} - {None}
            assert len(errors) == 1
            assert f"cp_rank {rank}: OSError: fails at" in errors.pop()
            faults[rank].arm(1 << 60)
            again = ask(ranks.engine, PROMPTS, 5000 + 10 * left)
            assert [each.token_ids for each in again] == [each.token_ids for each in expected]
            left += 7
        assert left > 100


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_two_that_fail_in_one_step_are_one_error_everywhere(kv_layout: KvLayout) -> None:
    with failing_group(kv_layout) as (ranks, faults):
        for left in range(0, 40, 3):
            faults[1].arm(left)
            faults[2].arm(left)
            errors = {each.error for each in ask(ranks.engine, PROMPTS, 100 * left)} - {None}
            assert errors
            assert all(each and each.startswith(("cp_rank 1: OSError", "cp_rank 2: OSError")) for each in errors)
        for fault in faults:
            fault.arm(1 << 60)
        assert [each.token_ids for each in ask(ranks.engine, PROMPTS, 9000)] == [
            each.token_ids for each in alone()[1][2:5]
        ]


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_a_rank_that_fails_between_two_phases(kv_layout: KvLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    with group(SIZE, kv_layout) as ranks:
        model: Any = ranks.runners[1]._model
        logits = model.logits
        calls = 0

        def fail_at_the_fifth(hidden: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise MemoryError("no room for logits")
            return logits(hidden)

        monkeypatch.setattr(model, "logits", fail_at_the_fifth)
        answers = ask(ranks.engine, PROMPTS)
        assert {each.error for each in answers} - {None} == {"cp_rank 1: MemoryError: no room for logits"}
        assert [each.token_ids for each in ask(ranks.engine, PROMPTS, 10)] == [
            each.token_ids for each in alone()[1][2:5]
        ]


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_a_rank_that_chooses_another_token_is_named(kv_layout: KvLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    with group(SIZE, kv_layout) as ranks:
        model: Any = ranks.runners[2]._model
        logits = model.logits
        with monkeypatch.context() as patched:
            patched.setattr(model, "logits", lambda hidden: logits(hidden).roll(1, dims=-1))
            answers = ask(ranks.engine, PROMPTS[:1])
        assert [each.error for each in answers] == [f"cp_rank 2: {OTHER_PLAN}"]
        assert ask(ranks.engine, PROMPTS[:1], 10)[0].token_ids == alone()[1][2].token_ids


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_damaged_kv_of_one_owner_ends_its_reader_alone(kv_layout: KvLayout) -> None:
    read, beside = rounds()[1][1], rounds()[1][4]
    with group(SIZE, kv_layout) as ranks:
        whole, healthy = ask(ranks.engine, [read, beside])
        tree: Any = ranks.engine.scheduler._tree
        first_block = tree.block_ids(tree.match(array("I", read.token_ids), 0))[0]
        for store in ranks.stores:
            if (1, "latent") in store.parts:
                slot = torch.tensor([first_block * store.block_size])
                store.write(1, "latent", slot, torch.full((1, 48), torch.nan))
        damaged, still_healthy = ask(ranks.engine, [read, beside], 10)
        assert (damaged.token_ids, damaged.error) == ([], NOT_FINITE)
        assert still_healthy == healthy
        assert ask(ranks.engine, [read], 20) == [whole]
