"""How KV bytes get from one process's memory into another's: one-sided writes, and the proof that one has ended.

`mover.py` is the contract, held by `tests/contract` for every kind; `kinds.open_mover` opens one by its name.

| kind | reaches | who copies | what ends a writer at a fence |
|---|---|---|---|
| `shm` | one host and user | a thread of the writer, into a mapping | only the end of its process |
| `nixl` | any host, over TCP (UCX) | UCX in both processes | shutting the door that only it uses |
| `fake` | one process | the test, run by run | what the test says |

`delayed` puts faults around any of them, for tests of what is above.

Nothing here decides about blocks or requests: that is `lineclear.protocol.handoff`, whose rules R2, R9 and R10 lean on
what these promise.
"""
