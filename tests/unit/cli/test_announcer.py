import dataclasses
import io
import itertools

import pytest
from rich.console import Console

from lineclear.cli.announcer import Announcer
from lineclear.cli.checkpoint_facts import COMPLETE, CheckpointFacts
from lineclear.config.components import GatewayConfig, ServeConfig
from lineclear.transport.reports import Failed, GatewayListening, GatewayServing, Loading, Report, WorkerReady
from tests.unit.transport.model_facts import FACTS

READY: list[tuple[str, Report]] = [
    ("gateway", GatewayListening("127.0.0.1", 8000)),
    ("decode-0", WorkerReady(FACTS, 1.5)),
    ("prefill-0", WorkerReady(FACTS, 1.5)),
    ("gateway", GatewayServing(["decode-0"], ["prefill-0"])),
]


def announcer(config: ServeConfig | None = None, facts: CheckpointFacts = COMPLETE) -> tuple[Announcer, io.StringIO]:
    output = io.StringIO()
    return Announcer(config or ServeConfig(), Console(file=output), facts), output


def announce(*reports: tuple[str, Report], config: ServeConfig | None = None, facts: CheckpointFacts = COMPLETE) -> str:
    each, output = announcer(config, facts)
    for name, report in reports:
        each.on_report(name, report)
    return output.getvalue()


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_ready_is_said_once_everything_is(order: tuple[int, ...]) -> None:
    reports = [READY[index] for index in order]
    assert "ready" not in announce(*reports[:3])
    assert announce(*reports, READY[3]).count("lineclear ready on http://127.0.0.1:8000\n") == 1


def test_ready_names_the_model_its_pool_and_its_drafts() -> None:
    printed = announce(*READY)
    assert "model tiny, KV cache 64 tokens, up to 64 tokens a request, 3 draft tokens" in printed


def test_the_example_is_one_line_that_can_be_pasted() -> None:
    printed = announce(*READY)
    (line,) = (line for line in printed.splitlines() if "curl" in line)
    assert line.endswith("""-d '{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}'""")
    assert "Authorization" not in line


def test_the_example_of_a_model_without_chat_template_is_a_completion() -> None:
    printed = announce(*READY, facts=CheckpointFacts(has_chat_template=False))
    (line,) = (line for line in printed.splitlines() if "curl" in line)
    assert "/v1/completions " in line
    assert line.endswith("""-d '{"model": "tiny", "prompt": "Hello"}'""")


def test_the_example_has_a_key_where_one_is_needed() -> None:
    config = dataclasses.replace(ServeConfig(), gateway=GatewayConfig(api_key=("hunter2",)))
    printed = announce(*READY, config=config)
    assert "Authorization: Bearer $KEY" in printed
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    ("host", "url"), [("::1", "http://[::1]:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("h", "http://h:80")]
)
def test_the_address_can_be_opened(host: str, url: str) -> None:
    assert f"ready on {url}\n" in announce(("gateway", GatewayListening(host, 80)), *READY[1:])


@pytest.mark.parametrize(("name", "missing"), [("gateway", 0), ("decode-0", 1), ("prefill-0", 2)])
def test_ready_is_said_again_after_a_loss(name: str, missing: int) -> None:
    each, output = announcer()
    for role, report in READY:
        each.on_report(role, report)
    each.on_end(name)
    each.on_restart(name, "killed by SIGKILL", 0.2, 2)
    assert "starting life 2" in output.getvalue()
    each.on_report(*READY[missing])
    if name == "gateway":
        assert output.getvalue().count("ready on") == 1
        each.on_report(*READY[3])
    assert output.getvalue().count("ready on") == 2


def test_progress_is_plain_lines() -> None:
    assert announce(("decode-0", Loading("reading [weights]"))) == "decode-0: reading [weights]\n"


def test_progress_counts_as_the_worker_reports_it() -> None:
    stages = [("decode-0", Loading(f"loading weights {done}/3")) for done in (1, 2, 3)]
    assert announce(*stages).splitlines() == [f"decode-0: loading weights {done}/3" for done in (1, 2, 3)]


def test_notices_follow_the_first_line() -> None:
    output = io.StringIO()
    Announcer(ServeConfig(), Console(file=output), notices=("drafting is off",)).on_start()
    assert output.getvalue().splitlines()[1:] == ["drafting is off"]


@pytest.mark.parametrize("report", [Loading("loading"), READY[1][1], Failed("me too")])
def test_after_a_failure_nothing_more_is_said(report: Report) -> None:
    each, output = announcer()
    for role, ready in (READY[0], READY[3]):
        each.on_report(role, ready)
    each.on_report("gateway", Failed("the port is in use"))
    each.on_report("decode-0", report)
    each.on_stop()
    assert not output.getvalue()


def test_after_a_crash_loop_nothing_more_is_said() -> None:
    each, output = announcer()
    each.on_crash_loop("gateway", "exit code 1", 5)
    each.on_report("decode-0", Loading("loading"))
    each.on_stop()
    assert output.getvalue().splitlines()[1:] == []
    assert "giving up" in output.getvalue()
