"""`lineclear quarantine`: which blocks wait for a proof that no mover brings, and an operator's word in its place."""

import argparse
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from lineclear.base.errors import ConfigError, PeerError
from lineclear.cli.argument_types import count
from lineclear.cli.client import add_server_arguments, open_client, read_error, unreachable

TIMEOUT = httpx.Timeout(30.0, connect=5.0)

VOUCH_FLAG = "--it-can-write-no-more"

COLUMNS = ("worker", "prefill", "rank", "life", "handoffs", "blocks", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Look, or release."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("list", help="show whom blocks in quarantine wait for")
    release = actions.add_parser(
        "release",
        help="vouch that a lost process can write no more",
        description="Blocks in quarantine may still be written by a process that was lost and is not proven to have "
        "ended. If you know that it has, say so, and they are used again. If you are wrong, answers may be wrong.",
    )
    for each in (show, release):
        add_server_arguments(each)
    release.add_argument("--worker", metavar="ID", required=True, help="the decode worker whose blocks are meant")
    release.add_argument("--prefill", metavar="ID", required=True, help="the prefill instance that was lost")
    release.add_argument("--life", metavar="N", type=count, required=True, help="the life of it that was lost")
    release.add_argument("--rank", metavar="N", type=count, default=0, help="its rank, where it has several")
    release.add_argument(
        VOUCH_FLAG, action="store_true", help="your word: its process has ended, or its machine is off, for good"
    )


def run(arguments: argparse.Namespace) -> int:
    """Look, or release."""
    if arguments.action == "release" and not arguments.it_can_write_no_more:
        allowed = f"it, as your word: only then are the blocks of {arguments.worker} used again"
        raise ConfigError(VOUCH_FLAG.removeprefix("--"), "nothing", allowed)
    with open_client(arguments, TIMEOUT) as client:
        if arguments.action == "list":
            answer = _answer(client, "GET", "/quarantine")
            _print(answer["quarantine"])
            for worker_id in answer["no_answer"]:
                print(f"{worker_id} does not answer: what it said last is shown")
        else:
            body = {
                "worker": arguments.worker,
                "prefill": arguments.prefill,
                "rank": arguments.rank,
                "life": arguments.life,
                "can_write_no_more": "I am sure",
            }
            released = _answer(client, "POST", "/quarantine/release", body)
            print(f"{released['released_blocks']} blocks of {arguments.worker} are out of quarantine")
    return 0


def _answer(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the server answers.

    Raises:
        ConfigError: There is no server.
        PeerError: It refuses.
    """
    try:
        response = client.request(method, path, json=body)
    except httpx.TransportError as error:
        raise unreachable(client, error) from None
    if response.is_error:
        raise PeerError(f"{client.base_url}: {read_error(response.content, response.status_code)}")
    return response.json()


def _print(waiting: list[dict[str, Any]]) -> None:
    if not waiting:
        print("nothing is in quarantine")
        return
    table = Table(*COLUMNS, box=None)
    for each in waiting:
        table.add_row(*(str(each[column]) for column in COLUMNS))
    Console(highlight=False).print(table)
