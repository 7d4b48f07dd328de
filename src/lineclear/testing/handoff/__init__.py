"""The handoff's world: production machines, a hostile network, memory, writes, crashes, fences, a gateway's ledger.

`scenario` says how large a world is and which faults it has, `world` what its state is, `shells` performs the
machines' effects, `decode_moves`, `prefill_moves`, `write_moves` and `network` are what can happen, `model` puts
them together for the explorer. `mutants` and `controls` take one guard out at a time.
"""
