"""What `lineclear serve` tells the person who started it.

Plain lines, since the processes below log to the same terminal: a spinner would run into them. Other programs may wait
for the line `lineclear ready on URL`.
"""

import json
from collections.abc import Sequence
from typing import assert_never

from rich.console import Console
from rich.markup import escape

from lineclear import __version__
from lineclear.cli.checkpoint_facts import COMPLETE, CheckpointFacts
from lineclear.config.components import ServeConfig
from lineclear.transport.reports import Failed, GatewayListening, GatewayServing, Loading, Report, WorkerReady

LEFT = "exit code 0"
"""How a process ends that was asked to."""


class Announcer:
    """Turns reports and endings into lines on a terminal, and says when the service is ready.

    The service is ready when the gateway listens and has all its workers; it says so again after it was not. Once the
    service is given up, nothing is said of processes that do not know that yet: the error is the last word.

    Args:
        config: what is served.
        console: where it is said.
        facts: what the checkpoint has, for the example.
        notices: what was decided for the user, one line each.
    """

    def __init__(
        self,
        config: ServeConfig,
        console: Console,
        facts: CheckpointFacts = COMPLETE,
        notices: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._console = console
        self._facts = facts
        self._notices = notices
        self._listening: GatewayListening | None = None
        self._workers: dict[str, WorkerReady] = {}
        """Those that live and have loaded."""
        self._num_prefill = config.num_prefill
        """Prefill instances that are still to be expected."""
        self._serving = GatewayServing([])
        self._is_ready = False
        self._is_given_up = False

    def on_start(self) -> None:
        """The processes are being started."""
        engine, name = self._config.engine, self._config.gateway.served_model_name
        place = f"{self._config.source.model} on {engine.device} in {engine.dtype}"
        self._say(f"lineclear {__version__}: {name} from {place}")
        for notice in self._notices:
            self._say(notice)

    def on_report(self, name: str, report: Report) -> None:
        """A process reported."""
        if self._is_given_up:
            return
        match report:
            case Loading():
                self._say(f"{name}: {report.stage}")
            case WorkerReady():
                if name not in self._workers:  # else it has only connected again
                    self._say(f"{name}: loaded in {report.load_seconds:.1f} s")
                self._workers[name] = report
            case GatewayListening():
                self._listening = report
            case GatewayServing():
                self._serving = report
                self._is_ready = self._is_ready and self._has_all_workers
            case Failed():
                self._is_given_up = True
            case _:
                assert_never(report)
        self._announce_readiness()

    def on_end(self, name: str) -> None:
        """A process ended."""
        self._is_ready = False
        if name == "gateway":
            self._listening, self._serving = None, GatewayServing([])
        else:
            self._workers.pop(name, None)

    def on_restart(self, name: str, ending: str, wait_seconds: float, life: int) -> None:
        """A process ended by itself and is started again."""
        ended = "left" if ending == LEFT else f"died ({ending})"
        self._say(f"{name}: {ended}; starting life {life} in {wait_seconds:.1f} s", style="yellow")

    def on_stuck_worker(self, name: str) -> None:
        """A worker is ended because it no longer answers."""
        self._say(f"{name}: alive, but it does not answer; ending it", style="yellow")

    def on_crash_loop(self, name: str, ending: str, num_restarts: int) -> None:
        """A process keeps dying."""
        self._is_given_up = True
        self._say(f"{name}: died ({ending}) after {num_restarts} restarts in a row; giving up", style="red")

    def on_prefill_given_up(self, name: str, ending: str, num_restarts: int) -> None:
        """A prefill instance keeps dying; the service goes on without it."""
        self._num_prefill -= 1
        others = "the others compute its prompts" if self._num_prefill else "decode computes all prompts from now on"
        self._say(f"{name}: died ({ending}) after {num_restarts} restarts in a row; given up, {others}", style="red")
        self._announce_readiness()

    def on_drain(self) -> None:
        """The first stop signal came."""
        seconds = self._config.supervisor.drain_seconds
        self._say(f"finishing running requests, for {seconds:.0f} s at most; Ctrl-C again stops at once")

    def on_stop(self) -> None:
        """Everything has ended."""
        if not self._is_given_up:
            self._say("lineclear stopped")

    def _announce_readiness(self) -> None:
        if self._is_given_up or self._is_ready or self._listening is None or not self._has_all_workers:
            return
        self._is_ready = True
        url = f"http://{authority(self._listening.host, self._listening.port)}"
        model = next(iter(self._workers.values())).model
        self._say(f"lineclear ready on {url}", style="bold green")
        self._say(
            f"  model {model.name}, KV cache {model.num_blocks * model.block_size:,} tokens, "
            f"up to {model.max_model_len:,} tokens a request, {model.draft_tokens} draft tokens"
        )
        self._say(f"  try: {self._example(url, model.name)}")

    @property
    def _has_all_workers(self) -> bool:
        num_decode, serving = self._config.handoff.decode, self._serving
        is_connected = len(serving.worker_ids) >= num_decode and len(serving.prefill_ids) >= self._num_prefill
        return is_connected and len(self._workers) >= num_decode + self._num_prefill

    def _example(self, url: str, model: str) -> str:
        """A command that this model answers."""
        if self._facts.has_chat_template:
            path, prompt = "chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}
        else:
            path, prompt = "completions", {"prompt": "Hello"}
        body = json.dumps({"model": model, **prompt})
        key = ' -H "Authorization: Bearer $KEY"' if self._config.gateway.api_key else ""
        return f"curl {url}/v1/{path}{key} -H 'Content-Type: application/json' -d '{body}'"

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(escape(text), style=style, highlight=False, soft_wrap=True)


def authority(host: str, port: int) -> str:
    """Where a server that listens on an address is reached from the same machine, as it stands in a URL."""
    host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - compared, not bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
