"""Each guard of LayerSplit that is taken out is missed, where the same delays with all guards change nothing."""

from typing import Any

import pytest

from lineclear.parallel.build import RankLab
from lineclear.parallel.layersplit import LayerSplitPass
from lineclear.testing.ranks.lab import (
    RandomDelay,
    ReusesEarly,
    SendsBeforeLoaded,
    SlowReader,
    WithoutIndexWait,
    late_loads,
)
from tests.equivalence.rank_engines import alone, ask_rounds, group

ONE_BUFFER_BYTES = (32 + 16 + 24) * 4 * 16 * (512 // 16 + 1)


def is_right(make_pass: type[LayerSplitPass], *, staging_bytes: int = 1 << 20, load_seconds: float = 0.002) -> bool:
    lab = RankLab(before_fill=RandomDelay(3, 0.001), make_pass=make_pass)
    delays: dict[str, Any] = {
        "before_transfer": RandomDelay(1, 0.001),
        "make_around": late_loads(RandomDelay(2, load_seconds)),
    }
    with group(2, "layersplit", lab=lab, staging_bytes=staging_bytes, **delays) as ranks:
        return ask_rounds(ranks.engine) == alone()


@pytest.mark.parametrize("staging_bytes", [ONE_BUFFER_BYTES, 1 << 20])
@pytest.mark.parametrize("make_pass", [LayerSplitPass, SlowReader])
def test_with_all_guards(make_pass: type[LayerSplitPass], staging_bytes: int) -> None:
    assert is_right(make_pass, staging_bytes=staging_bytes, load_seconds=0.01)


def test_sending_before_the_load_is_there() -> None:
    assert not is_right(SendsBeforeLoaded, load_seconds=0.02)


def test_reading_index_keys_that_are_on_their_way() -> None:
    assert not is_right(WithoutIndexWait)


@pytest.mark.parametrize("staging_bytes", [ONE_BUFFER_BYTES, 1 << 20])
def test_filling_a_buffer_that_is_being_read(staging_bytes: int) -> None:
    assert not is_right(ReusesEarly, staging_bytes=staging_bytes)
