"""A worker's end of its control link."""

import socket
import time
from collections.abc import Callable

from lineclear.config.components import LinkConfig
from lineclear.protocol import wire
from lineclear.transport.endpoint import Endpoint
from lineclear.transport.link import Link, Talk, connect

_TALK: Talk[wire.ToWorker, wire.ToGateway] = Talk("the gateway", wire.encode, wire.decode_to_worker)


class GatewayLink(Link[wire.ToWorker, wire.ToGateway]):
    """One connection to the gateway."""

    def __init__(self, connection: socket.socket, config: LinkConfig, now: Callable[[], float]) -> None:
        super().__init__(connection, _TALK, config, now)

    @classmethod
    def connect(
        cls, endpoint: Endpoint, hello: wire.WorkerHello, config: LinkConfig, now: Callable[[], float] = time.monotonic
    ) -> "GatewayLink":
        """Connect once and say hello.

        Raises:
            OSError: The gateway is not there.
        """
        link = cls(connect(endpoint), config, now)
        link.send(hello)
        return link
