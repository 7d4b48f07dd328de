"""Clients that send prompts which nobody has seen, one after the other, until they are told to stop.

    python -m bench.gateway.load URL PROMPT_BYTES CLIENTS

Prints the number of prompts that were counted when its input ends.
"""

import asyncio
import itertools
import random
import sys

import httpx

WORDS = ("def", "return", "self", "the", "path", "value", "import", "for", "in", "range", "open", "line", "None", "#")


def prompt(seed: int, num_bytes: int) -> str:
    """Words in a new order: no run of them is cached."""
    dice = random.Random(seed)
    words: list[str] = []
    length = 0
    while length < num_bytes:
        words.append(dice.choice(WORDS) + str(dice.randrange(1000)))
        length += 1 + len(words[-1])
    return " ".join(words)


async def main(url: str, num_bytes: int, num_clients: int) -> int:
    """Send prompts until the input ends."""
    counted = itertools.count()

    async def client(number: int) -> None:
        for idx in itertools.count():
            body = {"messages": [{"role": "user", "content": prompt(1000 * number + idx, num_bytes)}]}
            (await http.post("/v1/messages/count_tokens", json=body)).raise_for_status()
            next(counted)

    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        clients = [asyncio.create_task(client(number)) for number in range(num_clients)]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return next(counted)


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
