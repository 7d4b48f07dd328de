from lineclear.cli.restarts import MAX_BACKOFF_SECONDS, RestartPolicy
from lineclear.config.components import SupervisorConfig

CONFIG = SupervisorConfig(max_restarts=3, restart_window_seconds=10.0, restart_backoff_seconds=0.5)


def test_the_wait_doubles_until_it_gives_up() -> None:
    policy = RestartPolicy(CONFIG)
    assert [policy.wait_before_restart(0.1) for _ in range(5)] == [0.5, 1.0, 2.0, None, None]


def test_a_long_life_begins_the_count_anew() -> None:
    policy = RestartPolicy(CONFIG)
    waits = [policy.wait_before_restart(uptime) for uptime in (0.1, 9.9, 10.0, 0.1, 0.1, 0.1)]
    assert waits == [0.5, 1.0, 0.5, 1.0, 2.0, None]


def test_no_restarts_may_be_wanted() -> None:
    assert RestartPolicy(SupervisorConfig(max_restarts=0)).wait_before_restart(0.1) is None


def test_the_wait_is_bounded() -> None:
    policy = RestartPolicy(SupervisorConfig(max_restarts=100, restart_backoff_seconds=1.0))
    waits = [policy.wait_before_restart(0.0) for _ in range(100)]
    assert max(wait or 0.0 for wait in waits) == MAX_BACKOFF_SECONDS
