"""What can go wrong before the first request."""

import asyncio
import socket
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.config.components import GatewayConfig, ServeConfig
from lineclear.gateway.process import Gateway, _listen
from lineclear.gateway.served_model import TextAssets


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_that_cannot_be_listened_on_is_named(host: str, assets: TextAssets, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = ServeConfig(gateway=GatewayConfig(host=host, port=port))

        async def serve() -> None:
            await Gateway(config, assets, lambda _: None).serve(f"unix:{tmp_path}/control")

        with pytest.raises(ConfigError, match=f"{host}:{port}"):
            asyncio.run(serve())


def test_accepted_connections_do_not_wait_to_fill_packets() -> None:
    with _listen("127.0.0.1", 0) as listener:
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
