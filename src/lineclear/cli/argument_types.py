"""Types of arguments that are no options: what they refuse is refused before the command begins its work."""

import argparse
import math
from pathlib import Path


def count(text: str) -> int:
    """A number of things to do.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a whole number, at least 0")
    return int(text)


def finite_number(text: str) -> float:
    """A number that JSON has too.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number")
    return number


def positive_number(text: str) -> float:
    """A number above 0 that JSON has too.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = finite_number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number above 0")
    return number


def share(text: str) -> float:
    """A part of a whole.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = finite_number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: 0 to 1")
    return number


def output_file(text: str) -> Path:
    """A file to be written at the end.

    Raises:
        ArgumentTypeError: It could not be: hours of work would be lost.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a file in a folder that is there")
    return path
