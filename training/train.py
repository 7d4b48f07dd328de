"""The training loop.

    python -m training.train --out DIR --minutes M [--resume]

The whole run is planned by elapsed time: learning rate, row lengths and the switch from dense to sparse attention are
functions of the share of `--minutes` that is used up, so a run always ends decayed. `DIR/state.pt` holds everything
needed to go on after an interruption; `DIR/log.jsonl` gets one line every `LOG_EVERY` steps.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own habit)
from torch import Tensor

from training.circuits import alphabet, initialise
from training.net import MoE, Net, NetConfig, Trace
from training.rows import CODE_WEIGHT, Batch, Codec, RowSource

TOKENS_PER_STEP = 4096
CODE_SHARE = 0.08
NUM_DRAFTS = 3
DRAFT_ROWS_SHARE = 0.25
DRAFT_WEIGHTS = (0.3, 0.15, 0.1)
INDEX_EVERY = 5
INDEX_ROWS = 48
INDEX_WEIGHT = 0.3
BIAS_RATE = 0.002
WARM_UP_STEPS = 60
CLIP_NORM = 1.0
LOG_EVERY = 25
SAVE_SECONDS = 120.0


@dataclass(frozen=True)
class Stage:
    """A part of the run: it lasts until `until` of the time is used; `lengths` maps row length to share of steps."""

    until: float
    lengths: dict[int, float]
    sparse: bool
    indexing: bool


STAGES = (
    Stage(0.15, {256: 0.5, 512: 0.5}, sparse=False, indexing=False),
    Stage(0.78, {256: 0.3, 512: 0.45, 1024: 0.25}, sparse=False, indexing=True),
    Stage(9.99, {256: 0.1, 512: 0.4, 1024: 0.35, 2048: 0.15}, sparse=True, indexing=True),
)


CONTINUED_STAGES = (
    Stage(0.70, {256: 0.15, 512: 0.4, 1024: 0.3, 2048: 0.15}, sparse=False, indexing=True),
    Stage(9.99, {256: 0.1, 512: 0.35, 1024: 0.35, 2048: 0.2}, sparse=True, indexing=True),
)
"""The stages of a run that starts from trained weights."""


def stage_at(stages: tuple[Stage, ...], progress: float) -> Stage:
    """The stage in force once `progress` (0..1) of the time is used."""
    return next(stage for stage in stages if progress < stage.until)


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Warm-up by steps, then flat to 25 % of the time, then linearly down to 2 % of the peak."""
    decay = min(1.0, max(0.02, (1.0 - progress) / 0.75))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * decay


class Trainer:
    """Net, optimiser and data stream of one run."""

    def __init__(self, out: Path, seed: int, peak: float, seconds: float) -> None:
        self.out, self.seed, self.peak, self.seconds = out, seed, peak, seconds
        self.net = Net(NetConfig())
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
        self.step, self.elapsed, self.num_tokens = 0, 0.0, 0
        self.stages = STAGES
        self.codec = Codec()
        initialise(self.net, alphabet(self.codec), seed)
        self.restart_stream()

    def restart_stream(self) -> None:
        """Start a data stream that belongs to (seed, step): a resumed run sees new rows."""
        self.rows = RowSource(self.codec, self.seed * 1_000_003 + self.step)
        torch.manual_seed(self.seed * 1_000_003 + self.step)

    def save(self) -> None:
        """Write `state.pt` atomically."""
        state = {
            "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "elapsed": self.elapsed, "num_tokens": self.num_tokens, "config": asdict(self.net.config),
            "stages": [asdict(stage) for stage in self.stages],
        }  # fmt: skip
        torch.save(state, self.out / "state.tmp")
        (self.out / "state.tmp").replace(self.out / "state.pt")

    def load(self, path: Path, *, weights_only: bool) -> None:
        """Go on from a saved state; with `weights_only` keep its weights and start a new schedule."""
        state = torch.load(path, weights_only=False)
        self.net.load_state_dict(state["net"])
        if weights_only:
            self.stages = CONTINUED_STAGES
        else:
            self.stages = tuple(Stage(**stage) for stage in state["stages"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.elapsed, self.num_tokens = state["step"], state["elapsed"], state["num_tokens"]
        self.restart_stream()

    def run(self) -> None:
        """Train until the time is used up."""
        last_save = time.monotonic()
        sums: dict[str, list[float]] = {}
        while self.elapsed < self.seconds:
            started = time.monotonic()
            for name, value in self.one_step().items():
                sums.setdefault(name, []).append(value)
            self.elapsed += time.monotonic() - started
            if self.step % LOG_EVERY == 0:
                self._log({name: sum(values) / len(values) for name, values in sums.items()})
                sums = {}
            if time.monotonic() - last_save > SAVE_SECONDS:
                self.save()
                last_save = time.monotonic()
        self.save()

    def one_step(self) -> dict[str, float]:
        """One batch forward and backward, one update; returns the figures to log."""
        progress = self.elapsed / self.seconds
        stage = stage_at(self.stages, progress)
        rng = self.rows.rng
        length = rng.choices(list(stage.lengths), weights=list(stage.lengths.values()))[0]
        batch = self.rows.batch(max(TOKENS_PER_STEP // length, 1), length, CODE_SHARE)
        self.net.sparse = stage.sparse
        with_index = stage.indexing and self.step % INDEX_EVERY == 0
        trace = Trace(index_rows=torch.randint(length // 4, length, (INDEX_ROWS,)) if with_index else None)
        loss, figures = losses(self.net, batch, trace)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        figures["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP_NORM))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.peak, self.step, progress)
        self.optimizer.step()
        balance(self.net, trace)
        self.step += 1
        self.num_tokens += batch.tokens.numel()
        return figures

    def _log(self, figures: dict[str, float]) -> None:
        line: dict[str, Any] = {
            "step": self.step, "minutes": round(self.elapsed / 60, 2), "tokens": self.num_tokens,
            "rate": round(self.num_tokens / self.elapsed), **{k: round(v, 4) for k, v in sorted(figures.items())},
        }  # fmt: skip
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def losses(net: Net, batch: Batch, trace: Trace) -> tuple[Tensor, dict[str, float]]:
    """The training loss of a batch and the figures worth logging."""
    hidden = net(batch.tokens, trace)
    logits = net.logits(hidden[:, :-1]).flatten(0, 1)
    targets = batch.tokens[:, 1:].flatten()
    each = F.cross_entropy(logits, targets, reduction="none")
    weights = batch.weights[:, 1:].flatten()
    loss = (each * weights).sum() / weights.sum()
    figures = dict(_trunk_figures(batch, each.detach(), logits.detach().argmax(-1) == targets))
    for step, draft_loss, accuracy in _draft_losses(net, batch, hidden, trace):
        loss = loss + DRAFT_WEIGHTS[step] * draft_loss
        figures[f"draft{step + 1}_acc"] = accuracy
    for idx, (index_loss, recall) in enumerate(zip(trace.index_losses, trace.index_recalls, strict=True)):
        loss = loss + INDEX_WEIGHT * index_loss
        figures[f"index{idx}_kl"], figures[f"index{idx}_recall"] = float(index_loss.detach()), float(recall)
    return loss, figures


def _trunk_figures(batch: Batch, each: Tensor, right: Tensor) -> Iterator[tuple[str, float]]:
    answers, hard = batch.answers[:, 1:].flatten() > 0, batch.hard[:, 1:].flatten() > 0
    code = batch.weights[:, 1:].flatten() * (~answers) == torch.tensor(CODE_WEIGHT)
    yield "answer_loss", float(each[answers].mean())
    yield "answer_acc", float(right[answers].float().mean())
    yield "hard_acc", float(right[hard].float().mean())
    wrong = (~right & answers).view(len(batch.tokens), -1).any(1)
    is_edit = batch.answers.any(1)
    yield "exact", 1.0 - float(wrong[is_edit].float().mean())
    if code.any():
        yield "code_loss", float(each[code].mean())
        yield "code_acc", float(right[code].float().mean())


def _draft_losses(net: Net, batch: Batch, hidden: Tensor, trace: Trace) -> Iterator[tuple[int, Tensor, float]]:
    """Loss and accuracy of each chained draft step at rows drawn by weight."""
    last = batch.tokens.shape[1] - NUM_DRAFTS - 1
    num_rows = int(last * DRAFT_ROWS_SHARE)
    rows = torch.multinomial(batch.weights[:, 2 : 2 + last] + 1e-3, num_rows)
    for step, draft in enumerate(net.draft_hiddens(batch.tokens, hidden, rows, NUM_DRAFTS, trace)):
        targets = batch.tokens.gather(1, rows + step + 2).flatten()
        weights = batch.weights.gather(1, rows + step + 2).flatten().clamp_max(1.0)
        logits = net.logits(draft).flatten(0, 1)
        each = F.cross_entropy(logits, targets, reduction="none")
        right = (logits.detach().argmax(-1) == targets).float()
        yield step, (each * weights).sum() / weights.sum(), float((right * weights).sum() / weights.sum())


@torch.no_grad()
def balance(net: Net, trace: Trace) -> None:
    """Move each router's bias towards the experts that got less than their share."""
    for layer in net.model.layers:
        if isinstance(layer.mlp, MoE):
            loads = trace.expert_loads[layer.mlp.layer_idx]
            layer.mlp.gate.e_score_correction_bias += BIAS_RATE * (loads.mean() - loads).sign()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=80.0)
    parser.add_argument("--resume", action="store_true", help="go on from OUT/state.pt, if it is there")
    parser.add_argument("--start-from", type=Path, help="a state.pt whose weights to start from, with a new schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=float, default=2e-3, help="learning rate at its highest")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(options.out, options.seed, options.peak, options.minutes * 60)
    if options.resume and (options.out / "state.pt").exists():
        trainer.load(options.out / "state.pt", weights_only=False)
    elif options.start_from:
        trainer.load(options.start_from, weights_only=True)
    trainer.run()


if __name__ == "__main__":
    main()
