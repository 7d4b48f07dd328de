"""A server of /v1/completions that computes nothing: it counts a prompt's ids and streams the tokens asked for at once.

    python -m bench.replay.null_server [--hang]

It prints its URL. With `--hang` it says when it was asked, sends the first token and no more.
"""

import argparse
import asyncio

import msgspec
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'


class Request(msgspec.Struct):
    """What is looked at of a request."""

    prompt: list[int]
    max_tokens: int


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, hangs: bool) -> None:
    """Serve one connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    request = msgspec.json.decode(await reader.readexactly(size), type=Request)
    writer.write(HEAD + TOKEN)
    if hangs:
        print("asked", flush=True)
        await reader.read()
        return
    usage = {
        "prompt_tokens": len(request.prompt),
        "completion_tokens": request.max_tokens,
        "prompt_tokens_details": {"cached_tokens": len(request.prompt) // 2},
    }
    last = msgspec.json.encode({"choices": [], "usage": usage})
    writer.write(TOKEN * (request.max_tokens - 1) + b"data: " + last + b"\n\ndata: [DONE]\n\n")
    writer.close()


async def serve(*, hangs: bool) -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(lambda r, w: answer(r, w, hangs=hangs), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true")
    uvloop.run(serve(hangs=parser.parse_args().hang))
