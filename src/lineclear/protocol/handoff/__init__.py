"""The handoff: a sequence's KV moves from prefill ranks to a decode worker, and no block is reused too early.

`names` says which attempt and which process, `messages` what they say, `codec` in which bytes. `receiver` decides
for one attempt on the decode side, `sender` for all attempts of one prefill rank process. docs/handoff.md explains
the rules, which the modules cite as R1 to R12.
"""
