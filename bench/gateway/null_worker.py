"""A worker that computes nothing: each of its sequences gets one token at each tick.

python -m bench.gateway.null_worker CONTROL_ENDPOINT INTERVAL_MS
"""

import os
import sys
import time

from lineclear.bundled import checkpoint_path
from lineclear.config.components import LinkConfig
from lineclear.gateway.tokenization import load_tokenization
from lineclear.model.digest import model_digest
from lineclear.protocol import wire
from lineclear.transport.endpoint import parse_endpoint
from lineclear.transport.gateway_link import GatewayLink

MAX_RUNNING = 512


def main(control: str, interval_seconds: float) -> None:
    """Serve until the gateway ends the link."""
    tokenization = load_tokenization(checkpoint_path())
    [token_id, *_] = tokenization.encode_text(" the")
    facts = wire.ModelFacts(
        name="null",
        vocab_size=tokenization.vocabulary.size,
        max_model_len=1_000_000,
        eos_token_ids=[],
        block_size=16,
        num_blocks=1_000_000,
        draft_tokens=0,
        max_running=MAX_RUNNING,
        decisive={"model": model_digest(checkpoint_path())},
    )
    hello = wire.WorkerHello(version=wire.WIRE_VERSION, worker_id="null", life=1, pid=os.getpid(), model=facts)
    link = GatewayLink.connect(parse_endpoint(control), hello, LinkConfig())
    num_left: dict[int, int] = {}
    next_tick = time.monotonic()
    while True:
        for message in link.poll(max(0.0, next_tick - time.monotonic())):
            if isinstance(message, wire.SubmitSequence):
                num_left[message.sequence_id] = message.sampling.max_tokens
            elif isinstance(message, wire.CancelSequence) and num_left.pop(message.sequence_id, None):
                ended = wire.SequenceOutput(sequence_id=message.sequence_id, finish_reason="cancelled")
                link.send(wire.StepOutputs(outputs=[ended]))
            elif isinstance(message, wire.Drain):
                link.send(wire.Drained())
        if time.monotonic() >= next_tick:
            next_tick += interval_seconds
            _tick(link, num_left, token_id)


def _tick(link: GatewayLink, num_left: dict[int, int], token_id: int) -> None:
    if not num_left:
        return
    for sequence_id in num_left:
        num_left[sequence_id] -= 1
    outputs = [
        wire.SequenceOutput(sequence_id=sequence_id, token_ids=[token_id], finish_reason=None if left else "length")
        for sequence_id, left in num_left.items()
    ]
    link.send(wire.StepOutputs(outputs=outputs))
    for output in outputs:
        if output.finish_reason is not None:
            del num_left[output.sequence_id]


if __name__ == "__main__":
    try:
        main(sys.argv[1], float(sys.argv[2]) / 1000)
    except ConnectionError:
        sys.exit(0)
