"""Identifiers, one type for each thing that is named by a number or a string."""

from typing import NewType

SequenceId = NewType("SequenceId", int)
"""A token list with KV on one worker; unique for the life of the gateway that numbered it."""

RequestId = NewType("RequestId", str)
"""One client call at the gateway; a request with several choices has several sequences."""

BlockId = NewType("BlockId", int)
"""A block's place in its pool, 0 to num_blocks - 1."""

WorkerId = NewType("WorkerId", str)
"""A worker's name, kept across its lives."""
