"""The scenarios that are explored with the production machines under the strictest physics.

`BOUNDED` is for every day, `FULL` adds what takes hours. docs/handoff.md has the counts.
"""

from lineclear.testing.handoff.scenario import ONE_OF_EACH, Budget, Scenario

BOUNDED = (
    Scenario("1 rank, 1 request", num_requests=1),
    Scenario("1 rank, 1 request, 2 writes, all faults", num_requests=1, num_tokens=2, budget=ONE_OF_EACH),
    Scenario("1 rank, 2 requests, 1 block", num_requests=2),
    Scenario("1 rank, 2 requests, 1 block, all faults", budget=ONE_OF_EACH),
    Scenario("1 rank, 2 requests, 1 block, 2 crashes a side", budget=Budget(rank_crashes=2, decode_crashes=2)),
    Scenario("1 rank, 2 requests, 1 block, live fence, unknown", live_fences=True, budget=Budget(unknowns=1)),
    Scenario("1 rank, 3 requests, 1 block, crash, unknown", num_requests=3, budget=Budget(1, 0, 1)),
    Scenario("1 rank, 2 requests, 2 blocks, 1 source, crash, unknown", num_blocks=2, budget=Budget(1, 0, 1)),
    Scenario(
        "1 rank, 2 requests, 2 blocks, 2 sources, failures", num_blocks=2, num_sources=2, budget=Budget(0, 0, 1, 1, 1)
    ),
    Scenario("1 rank, 2 requests of 2 blocks, 3 blocks", num_tokens=2, block_size=1, num_blocks=3, budget=Budget(1)),
    Scenario("2 ranks, 1 request, all faults", num_ranks=2, num_requests=1, budget=ONE_OF_EACH),
    Scenario("2 ranks, 2 requests, 1 block", num_ranks=2),
    Scenario("2 ranks, 2 requests, 1 block, rank crash", num_ranks=2, budget=Budget(1)),
)

FULL = (
    *BOUNDED,
    Scenario("1 rank, 2 requests, 1 block, 2 writes, all faults", num_tokens=2, budget=ONE_OF_EACH),
    Scenario("1 rank, 2 requests, 1 block, retry, all faults", num_attempts=2, budget=ONE_OF_EACH),
    Scenario("1 rank, 2 requests, 2 blocks, 1 source, all faults", num_blocks=2, budget=ONE_OF_EACH),
    Scenario("1 rank, 2 requests, 2 blocks, 2 sources, all faults", num_blocks=2, num_sources=2, budget=ONE_OF_EACH),
    Scenario(
        "1 rank, 2 requests, 2 blocks, 2 sources, retry, crash, unknown",
        num_blocks=2,
        num_sources=2,
        num_attempts=2,
        budget=Budget(1, 0, 1),
    ),
    Scenario("2 ranks, 2 requests, 1 block, decode crash", num_ranks=2, budget=Budget(0, 1)),
    Scenario("2 ranks, 2 requests, 1 block, unknown, error, failure", num_ranks=2, budget=Budget(0, 0, 1, 1, 1)),
    Scenario(
        "2 ranks, 2 requests, 1 block, live fence, unknown", num_ranks=2, live_fences=True, budget=Budget(unknowns=1)
    ),
    Scenario("2 ranks, 2 requests, 1 block, a crash on either side", num_ranks=2, budget=Budget(1, 1)),
    Scenario("2 ranks, 2 requests, 1 block, 2 writes", num_ranks=2, num_tokens=2),
    Scenario("2 ranks, 2 requests, 1 block, retry", num_ranks=2, num_attempts=2),
    Scenario("2 ranks, 2 requests, 2 blocks, 1 source", num_ranks=2, num_blocks=2),
    Scenario("2 ranks, 2 requests, 1 block, all faults", num_ranks=2, budget=ONE_OF_EACH),
    Scenario("2 ranks, 2 requests, 2 blocks, 1 source, rank crash", num_ranks=2, num_blocks=2, budget=Budget(1)),
)

LARGE = Scenario(
    "3 ranks, 4 requests, 3 blocks, 2 sources, 3 writes, retry",
    num_ranks=3,
    num_requests=4,
    num_blocks=3,
    num_sources=2,
    num_tokens=3,
    num_attempts=2,
    live_fences=True,
    budget=Budget(3, 2, 3, 3, 3),
)
"""Too large for any search: for random walks."""
