"""What a handoff costs, measured between real processes.

`lab_worker` is a worker with an observer, with faults, or without a model; `service` starts a gateway and such workers
and asks them; the other modules measure one thing each. `python -m bench.bench_handoff` runs them.
"""
