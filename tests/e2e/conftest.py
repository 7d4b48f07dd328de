"""What one process answers: the truth for services of several."""

import asyncio

import pytest

from tests.e2e.asking import SERVE, Answers, ask_all
from tests.e2e.processes import running


@pytest.fixture(scope="session")
def expected() -> Answers:
    """What one process answers."""
    with running([*SERVE, "--colocated"]) as server:
        answers = asyncio.run(ask_all(server.wait_for(r"ready on (http://\S+)")[1]))
    assert all(answers)
    return answers
