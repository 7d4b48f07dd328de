"""What travels between ranks: each owner's own content, of the running batch alone; counted, and drawn in time."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore
from lineclear.model.batch import Part
from lineclear.parallel.build import KvLayout, RankLab
from lineclear.parallel.layersplit import LayerSplitPass
from lineclear.parallel.meter import Happening, Span
from lineclear.parallel.timeline import write_timeline
from lineclear.protocol.sampling import SamplingParams
from lineclear.testing.ranks.group import RankGroup
from tests.equivalence.rank_engines import ENGINE, Asked, ask, ask_rounds, group, rounds

LATENT, INDEX = 48, 24
"""Values of a token in each part."""
INDEXERS = (0, 2, 4)
ONE_STEP = replace(ENGINE, draft_tokens=0, max_batch_tokens=1000)


class Comparing(LayerSplitPass):
    """Compares whatever is read with the owner's store, but for the rows that the pass itself has written."""

    stores: ClassVar[list[KvStore]] = []
    seen: ClassVar[dict[tuple[int, int, Part], int]] = {}
    """By rank, layer and part: how many slots were compared."""
    num_wrong: ClassVar[int] = 0

    def read(self, layer: int, part: Part) -> Tensor:
        staged = super().read(layer, part)
        config, rank = self._parts.config, self.hand.rank
        item = next(each for each in self._staging._schedule if (each.layer, each.part) == (layer, part))
        size = self.block_size
        places = torch.arange(size, (item.num_blocks + 1) * size)
        pool = (self._block_ids[: item.num_blocks].unsqueeze(1) * size + torch.arange(size)).flatten()
        is_old = ~torch.isin(places, self.hand.slots)
        store = Comparing.stores[self._parts.owners.ranks[layer]]
        held = store.read(layer, part, AlwaysReady())[pool[is_old]]
        Comparing.num_wrong += int((staged[places[is_old]] != held).any(dim=1).sum())
        assert config.part_width(layer, part) == staged.shape[1]
        key = (rank, layer, part)
        Comparing.seen[key] = Comparing.seen.get(key, 0) + int(is_old.sum())
        return staged


def fill_with_names(stores: list[KvStore]) -> None:
    """Every value of a store says whose it is: owner, layer, part, slot."""
    for owner, store in enumerate(stores):
        for layer, part in store.parts:
            values = torch.arange(store.num_blocks * store.block_size, dtype=torch.float32) * 1e-4
            values += owner * 7 + layer + 0.5 * (part == "index")
            width = store.read(layer, part, AlwaysReady()).shape[1]
            store.write(layer, part, torch.arange(len(values)), values.unsqueeze(1).expand(-1, width).contiguous())


@pytest.mark.parametrize("size", [2, 4, 5])
def test_every_rank_reads_exactly_what_the_owner_holds(size: int) -> None:
    Comparing.seen, Comparing.num_wrong = {}, 0
    with group(size, "layersplit", lab=RankLab(make_pass=Comparing)) as ranks:
        Comparing.stores = ranks.stores
        assert sorted(part for store in ranks.stores for part in store.parts) == sorted(
            [(layer, "latent") for layer in range(5)] + [(layer, "index") for layer in INDEXERS]
        )
        ask(ranks.engine, rounds()[0])
        fill_with_names(ranks.stores)
        ask(ranks.engine, rounds()[1], 100)
    assert Comparing.num_wrong == 0
    latents = {(rank, layer, "latent") for rank in range(size) for layer in range(5)}
    assert latents <= {key for key, num_slots in Comparing.seen.items() if num_slots > 500}
    assert {key[1] for key, num_slots in Comparing.seen.items() if key[2] == "index" and num_slots > 500} == set(
        INDEXERS
    )


def test_a_store_with_other_content_is_noticed() -> None:
    """The comparison's own control: the stores are changed behind the ranks' backs, after the fill."""
    Comparing.seen, Comparing.num_wrong = {}, 0
    with group(2, "layersplit", lab=RankLab(make_pass=Comparing)) as ranks:
        Comparing.stores = [KvStore(store_config(ranks), 256, 16, device=torch.device("cpu"), dtype=torch.float32)] * 2
        ask(ranks.engine, rounds()[0][-1:])
    assert Comparing.num_wrong > 0


def store_config(ranks: RankGroup) -> object:
    return ranks.runners[0]._model.config


def sent_by_all(ranks: RankGroup) -> dict[tuple[int, str], int]:
    total: dict[tuple[int, str], int] = {}
    for each in ranks.statistics():
        for key, num_bytes in each.sent_bytes.items():
            total[key] = total.get(key, 0) + num_bytes
    return total


@pytest.mark.parametrize("max_total_tokens", [1024, 16_384])
def test_the_running_batchs_blocks_are_sent_and_not_the_pools(max_total_tokens: int) -> None:
    random = Random(1)
    prompt = tuple(random.randrange(3, 320) for _ in range(300))
    once = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    with group(2, "layersplit", replace(ONE_STEP, max_total_tokens=max_total_tokens)) as ranks:
        ask(ranks.engine, [Asked(prompt[:200], once)])
        assert sent_by_all(ranks) == {}
        ask(ranks.engine, [Asked(prompt, once)], 10)
        num_bytes = (200 // 16) * 16 * 4
        expected = {(layer, "latent"): num_bytes * LATENT for layer in range(4)}
        assert sent_by_all(ranks) == expected | {(layer, "index"): num_bytes * INDEX for layer in (0, 2)}


def test_index_parts_of_contexts_that_are_not_scored_stay_where_they_are() -> None:
    prompt = rounds()[1][1].token_ids
    once = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    with group(2, "layersplit", ONE_STEP) as ranks:
        ask(ranks.engine, [Asked(prompt[:20], once)])
        ask(ranks.engine, [Asked(prompt, once)], 10)
        assert sent_by_all(ranks) == {(layer, "latent"): 16 * LATENT * 4 for layer in range(4)}


@pytest.mark.parametrize("kv_layout", ["replicated", "layersplit"])
def test_the_timeline_shows_every_rank_and_whatever_takes_time(kv_layout: KvLayout, tmp_path: Path) -> None:
    spans: dict[int, list[Span]] = {0: [], 1: []}
    with group(2, kv_layout, sink_of=lambda rank: spans[rank].append) as ranks:
        ask_rounds(ranks.engine)
        statistics = ranks.statistics()
    path = tmp_path / "timeline.json"
    write_timeline(path, spans)
    events = json.loads(path.read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == sum(map(len, spans.values()))
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in drawn)
    shown = {Happening.COMPUTE, Happening.GATHER, Happening.WAIT}
    if kv_layout == "layersplit":
        shown |= {Happening.LOAD, Happening.FILL, Happening.BROADCAST, Happening.RECEIVE}
    for rank, counted in enumerate(statistics):
        assert {span.happening for span in spans[rank]} == shown
        sent = [span for span in spans[rank] if span.happening is Happening.BROADCAST]
        assert (counted.num_broadcasts, sum(counted.sent_bytes.values())) == (
            len(sent),
            sum(span.num_bytes for span in sent),
        )
        waits = [span for span in spans[rank] if span.happening is Happening.WAIT]
        assert sum(counted.wait_seconds.values()) == pytest.approx(sum(span.seconds for span in waits))
        assert {span.part for span in waits} <= {"index", "latent", "rows", "control"}


def test_index_parts_are_sent_before_their_layers_latent_parts() -> None:
    spans: dict[int, list[Span]] = {0: [], 1: []}
    with group(2, "layersplit", sink_of=lambda rank: spans[rank].append) as ranks:
        ask_rounds(ranks.engine)
    for of_rank in spans.values():
        ended: dict[tuple[int, str], int] = {}
        num_pairs = 0
        for span in of_rank:
            if span.layer is None or span.part is None:
                continue
            if span.happening is Happening.BROADCAST and span.part == "index":
                ended[span.layer, "index"] = span.ended_ns
            if span.happening is Happening.FILL and span.part == "latent" and (span.layer, "index") in ended:
                assert span.started_ns >= ended[span.layer, "index"]
                num_pairs += 1
        assert num_pairs > 10
