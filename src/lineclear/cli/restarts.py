"""Whether and when a process that ended is started again. Pure: uptimes come in, waits go out."""

from lineclear.config.components import SupervisorConfig

MAX_BACKOFF_SECONDS = 30.0


class RestartPolicy:
    """Doubles the wait while a process keeps dying young, and gives up after `max_restarts` of these in a row."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._num_young_deaths = 0

    def wait_before_restart(self, uptime_seconds: float) -> float | None:
        """The wait after a death at this age, or `None` if the process is in a crash loop.

        Units: seconds.
        """
        if uptime_seconds >= self._config.restart_window_seconds:
            self._num_young_deaths = 0
        self._num_young_deaths += 1
        if self._num_young_deaths > self._config.max_restarts:
            return None
        wait = self._config.restart_backoff_seconds * 2 ** (self._num_young_deaths - 1)
        return min(wait, MAX_BACKOFF_SECONDS)
