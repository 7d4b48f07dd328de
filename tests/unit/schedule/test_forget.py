"""Blocks are given up while sequences hold them: these go on, and nothing of them is found later."""

from array import array

from tests.unit.schedule.desk import Desk

PROMPT = list(range(1, 14))


def test_who_holds_what_is_given_up_goes_on_and_publishes_nothing_more() -> None:
    desk = Desk()
    holder = desk.add(PROMPT, max_tokens=12)
    desk.step()
    desk.scheduler.forget_blocks([holder.block_table[0]])
    desk.scheduler.check()
    while desk.scheduler.has_work:
        desk.step()
    assert len(holder.output_token_ids) == 12
    assert desk.tree.match(array("I", holder.tokens), 99) is desk.tree.root
    assert desk.pool.num_free == desk.pool.num_blocks


def test_who_comes_later_is_found_again() -> None:
    desk = Desk()
    desk.add(PROMPT, max_tokens=8)
    desk.step()
    assert desk.scheduler.forget_prompt(array("I", PROMPT)) == 3
    later = desk.add(PROMPT, max_tokens=8)
    while desk.scheduler.has_work:
        desk.step()
    assert later.num_cached_tokens == 0
    assert desk.tree.match(array("I", PROMPT), 99).num_blocks == 3
