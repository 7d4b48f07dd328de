"""A prefill instance of several ranks: one plans, the others follow.

    rank 0: scheduler, prefix tree, plans of tiers ──plans──▶ every rank: model, passes, store, copies, writer
                        ◀──ends of copies, releases──

Rank 0 tells the others what to run, copy and send before it does so itself, over one link each that keeps its order;
what ranks compute together goes over the communicator of `lineclear.parallel`. No rank decides anything by itself but
what protects its own memory: its desk's sender machine.

Invariants:
1. All ranks are of one life. When one ends, the links of the others break, and they end.
2. Copies, plans and orders are obeyed in the order in which rank 0 has begun them.
3. A block is free on rank 0 only when no rank's pass, copy or write touches it any more.
"""
