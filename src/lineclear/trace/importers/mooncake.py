"""Mooncake's traces (FAST '25): one JSON object a line.

`timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of 512-token blocks, the same ids in all rows.
"""

from lineclear.base.errors import TraceError
from lineclear.trace.codec import prompt_problem
from lineclear.trace.events import Arrived, Ended, Event
from lineclear.trace.importers.rows import parse_object, take_ids, take_int, take_number


class MooncakeParser:
    """Rows to events. There are no sessions, and nothing says when a request ended."""

    block_len = 512
    source = "mooncake"

    def parse(self, number: int, line: str) -> list[Event]:
        """See `RowParser`."""
        row = parse_object(number, line)
        blocks, prompt_len = take_ids(number, row, "hash_ids"), take_int(number, row, "input_length", 1)
        problem = prompt_problem(prompt_len, len(blocks), self.block_len)
        if problem is not None:
            raise TraceError(number, "input_length", prompt_len, problem)
        at_s = take_number(number, row, "timestamp") / 1000
        request = str(number)
        return [
            Arrived(at_s=at_s, request=request, prompt_len=prompt_len, blocks=blocks),
            Ended(request=request, output_len=take_int(number, row, "output_length", 0)),
        ]
