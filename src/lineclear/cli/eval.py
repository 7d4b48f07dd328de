"""`lineclear eval`: the bundled model's figures on held-out data, through the serving engine."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lineclear.cli.argument_types import count, output_file
from lineclear.cli.option_flags import add_option_flags, resolve_arguments
from lineclear.cli.serve import fit_checkpoint
from lineclear.evaluation.bundled import BundledEvaluation, EvaluationSize
from lineclear.evaluation.figures import print_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`, and how much to run."""
    default = EvaluationSize()
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--edit-tasks", type=count, default=default.num_edit_tasks, help="edit tasks (default %(default)s)"
    )
    parser.add_argument(
        "--code-prompts", type=count, default=default.num_code_prompts, help="code continuations (default %(default)s)"
    )
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print each figure as it is known."""
    fitted = fit_checkpoint(resolve_arguments(arguments))
    config = fitted.config
    for notice in fitted.notices:
        print(notice, file=sys.stderr)
    size = replace(EvaluationSize(), num_edit_tasks=arguments.edit_tasks, num_code_prompts=arguments.code_prompts)
    print_figures(BundledEvaluation(Path(config.source.model), config.engine, size).run(), arguments.json)
    return 0
