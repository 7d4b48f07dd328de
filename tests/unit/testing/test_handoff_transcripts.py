from pathlib import Path

import pytest

from lineclear.base.errors import InvariantError
from lineclear.testing.handoff.scenario import Scenario
from lineclear.testing.handoff.transcripts import Story, tell, write_transcripts

REVIEWED = Path(__file__).parents[2] / "transcripts"


def test_the_transcripts_are_those_under_review(tmp_path: Path) -> None:
    """If a change is wanted: `lineclear prove transcripts`, and review the difference as text."""
    write_transcripts(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text(encoding="utf-8") == (REVIEWED / path.name).read_text(encoding="utf-8"), path.name
    assert {path.name for path in REVIEWED.glob("handoff_*.txt")} == {path.name for path in tmp_path.iterdir()}


def test_a_story_that_cannot_happen_is_refused() -> None:
    with pytest.raises(InvariantError, match="'arrives: Abort' cannot happen"):
        tell(Story("wrong", "", Scenario("one", num_requests=1), ("arrives: Abort",)))
