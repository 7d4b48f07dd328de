"""The proof as a list of findings: the production machines in every scenario, then every guard taken out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lineclear.testing.explorer import Exploration, explore
from lineclear.testing.handoff.controls import Control
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.reduction import ALL_ALIKE
from lineclear.testing.handoff.scenario import Scenario
from lineclear.testing.rest import Rest

OnProgress = Callable[[str, int], None]
"""Is told what is explored, and how many worlds of it are known so far."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one exploration found."""

    name: str
    exploration: Exploration
    is_as_expected: bool
    """Nothing wrong with the production machines or after a harmless change; the expected fault after any other."""


def explore_scenarios(scenarios: Iterable[Scenario], on_progress: OnProgress) -> Iterator[Finding]:
    """Explore the production machines: every interleaving, safety and liveness."""
    for scenario in scenarios:
        model = HandoffModel(scenario, likeness=ALL_ALIKE)
        liveness = Rest(model.at_rest(), model.start())
        found = explore(model, liveness=liveness, on_progress=_about(scenario.name, on_progress))
        yield Finding(scenario.name, found, found.broken is None and found.is_complete)


def explore_controls(controls: Iterable[Control], on_progress: OnProgress) -> Iterator[Finding]:
    """Explore with one guard taken out at a time."""
    for control in controls:
        found = control.run(_about(control.name, on_progress))
        yield Finding(control.name, found, control.is_satisfied_by(found))


def _about(name: str, on_progress: OnProgress) -> Callable[[int], None]:
    return lambda num_states: on_progress(name, num_states)
