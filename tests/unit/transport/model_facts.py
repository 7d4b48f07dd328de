"""The facts of a model that does not exist."""

from lineclear.protocol.wire import ModelFacts

FACTS = ModelFacts(
    name="tiny",
    vocab_size=8,
    max_model_len=64,
    eos_token_ids=[7],
    block_size=4,
    num_blocks=16,
    draft_tokens=3,
    max_running=2,
)
