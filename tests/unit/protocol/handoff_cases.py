"""Names and works that the tests of the handoff machines share."""

from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.messages import PrefillWork
from lineclear.protocol.handoff.names import Epoch, Peer

RANK_0 = Peer(WorkerId("p"), 0, 5)
RANK_1 = Peer(WorkerId("p"), 1, 5)


def epoch(number: int, life: int = 1, worker: str = "d") -> Epoch:
    return Epoch(WorkerId(worker), life, number)


def work(num_tokens: int = 4, start: int = 0) -> PrefillWork:
    return PrefillWork(
        prompt_token_ids=tuple(range(num_tokens + 1)),
        start=start,
        block_ids=(3, 1),
        memory_key=b"key",
        sequence_id=1,
    )
