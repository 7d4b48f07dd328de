"""Orders of a writer's thread."""

import threading

from lineclear.transport.movers.threaded_writer import Forget, Orders

NUM_ROUNDS = 30_000
"""A `SimpleQueue` stood still after about ten thousand, on a busy machine."""
PATIENCE_SECONDS = 60.0


def test_a_wait_that_is_over_at_once_is_over() -> None:
    orders, order = Orders(), Forget(b"a memory")

    def take() -> None:
        for _ in range(NUM_ROUNDS):
            orders.put(order)
            assert orders.take(None) is order
            assert orders.take(1e-6) is None

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
