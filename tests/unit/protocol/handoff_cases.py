"""Names and works that the tests of the handoff machines share."""

from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.messages import PrefillResult, PrefillWork
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.sampling import SamplingParams

RANK_0 = Peer(WorkerId("p"), 0, 5)
RANK_1 = Peer(WorkerId("p"), 1, 5)
RESULT = PrefillResult(first_token_id=7, draft_token_ids=(8, 9))


def epoch(number: int, life: int = 1, worker: str = "d") -> Epoch:
    return Epoch(WorkerId(worker), life, number)


def work(num_tokens: int = 4, start: int = 0) -> PrefillWork:
    return PrefillWork(
        prompt_token_ids=tuple(range(num_tokens)),
        start=start,
        block_ids=(3, 1),
        memory_key=b"key",
        sampling=SamplingParams(max_tokens=1, logit_bias={1: 2.0}),
        request_id="r",
        sequence_id=1,
    )
