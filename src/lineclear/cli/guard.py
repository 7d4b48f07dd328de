"""`lineclear guard`: learns a model's baselines from healthy traffic, and shows what is in such a file.

`guard calibrate` runs edits, code and lists through the serving engine, greedy and sampled, and writes the file that
`--guard-detector calibrated` reads. `guard report` prints a file's figures. `guard evaluate` damages some of many
requests while they run, and prints what each detector finds of them, and of those that are healthy.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lineclear.base.errors import ConfigError
from lineclear.cli.argument_types import count, output_file, positive_number, share
from lineclear.cli.option_flags import add_option_flags, options_of, resolve_arguments
from lineclear.cli.serve import fit_checkpoint
from lineclear.config.components import ServeConfig
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.evaluation.guard.calibration import calibrate
from lineclear.evaluation.guard.detection import Outcome, detector_judges, figures, run_damaged
from lineclear.evaluation.guard.traffic import TrafficSize
from lineclear.gateway.served_model import load_text_assets
from lineclear.guard.baselines import Baselines, ModeBaselines, encode_baselines
from lineclear.worker.guarding import baselines_path, load_baselines

OPTIONS = options_of("source", "engine") | {"guard_baselines"}
"""What it reads."""

DEFAULT_ALARMS_PER_MILLION = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, with how much traffic, and the options of the engine."""
    size = TrafficSize()
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    learning = subjects.add_parser("calibrate", help="learn the baselines of a model, and write them")
    learning.add_argument(
        "--out", type=output_file, metavar="FILE", help="where to (default: where `serve` looks for it)"
    )
    learning.add_argument("--edits", type=count, default=size.num_edits, help="edits of files (default %(default)s)")
    learning.add_argument("--code", type=count, default=size.num_code, help="code to go on (default %(default)s)")
    learning.add_argument("--lists", type=count, default=size.num_lists, help="repetitive texts (default %(default)s)")
    learning.add_argument(
        "--alarms-per-million",
        type=positive_number,
        default=DEFAULT_ALARMS_PER_MILLION,
        metavar="X",
        help="false alarms allowed per million healthy tokens (default %(default)s)",
    )
    reporting = subjects.add_parser("report", help="print the figures of a file of baselines")
    evaluating = subjects.add_parser("evaluate", help="damage requests while they run, and see what detectors find")
    evaluating.add_argument("--requests", type=count, default=2000, help="requests in all (default %(default)s)")
    evaluating.add_argument(
        "--damaged-share", type=share, default=0.05, metavar="X", help="of them damaged (default %(default)s)"
    )
    evaluating.add_argument("--dice", type=count, default=0, help="seed of whom and when (default %(default)s)")
    for each in (learning, reporting, evaluating):
        each.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
        add_option_flags(each, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, report or evaluate."""
    config = fit_checkpoint(resolve_arguments(arguments)).config
    if arguments.subject == "evaluate":
        return _evaluate(config, arguments)
    if arguments.subject == "report":
        print_figures(_figures(load_baselines(config)), arguments.json)
        return 0
    return _calibrate(config, arguments)


def _calibrate(config: ServeConfig, arguments: argparse.Namespace) -> int:
    if not config.engine.draft_tokens:
        raise ConfigError("draft_tokens", 0, "at least 1: baselines are of drafts")
    path: Path = arguments.out or baselines_path(config)
    if not os.access(path.parent, os.W_OK):
        raise ConfigError("out", str(path), "a file in a folder that exists and can be written to")
    size = TrafficSize(num_edits=arguments.edits, num_code=arguments.code, num_lists=arguments.lists)
    baselines = calibrate(
        Path(config.source.model),
        config.engine,
        size,
        alarms_per_million=arguments.alarms_per_million,
        on_mode=lambda mode, num_prompts: print(f"{mode}: {num_prompts} prompts", file=sys.stderr, flush=True),
    )
    path.write_bytes(encode_baselines(baselines))
    print_figures(_figures(baselines), arguments.json)
    print(f"written to {path}", file=sys.stderr)
    return 0


def _evaluate(config: ServeConfig, arguments: argparse.Namespace) -> int:
    model_dir = Path(config.source.model)
    judges = detector_judges(load_baselines(config), load_text_assets(model_dir).tokenization.vocabulary)
    outcomes: list[Outcome] = []
    batches = run_damaged(
        model_dir, config.engine, arguments.requests, damaged_share=arguments.damaged_share, seed=arguments.dice
    )
    for batch in batches:
        outcomes += batch
        print(f"{len(outcomes)} of {arguments.requests} requests", file=sys.stderr, flush=True)
    print_figures(figures(outcomes, judges), arguments.json)
    return 0


def _figures(baselines: Baselines) -> Iterator[Figure]:
    yield Figure("alarms_per_million_tokens", baselines.alarms_per_million)
    yield from _mode_figures("greedy", baselines.greedy)
    yield from _mode_figures("sampled", baselines.sampled)


def _mode_figures(name: str, mode: ModeBaselines) -> Iterator[Figure]:
    yield Figure(f"{name}_sequences", mode.num_sequences)
    yield Figure(f"{name}_tokens", mode.num_tokens, "tokens")
    for position, accepted in enumerate(mode.accept_by_position):
        yield Figure(f"{name}_accept_at_{position + 1}", accepted)
    yield Figure(f"{name}_cusum_threshold", mode.threshold)
    yield Figure(f"{name}_loop", mode.loop_tokens, "tokens")
