"""The bundled model's figures on held-out data: exact answers, draft acceptance, and both after damage.

Everything goes through the serving engine, as a server would run it.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lineclear.base.errors import CheckpointError
from lineclear.bundled.corpus import load_corpus
from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, EditTask, check
from lineclear.bundled.edit_tasks import generate as generate_task
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.evaluation.damage import PromptCapture, PromptDamage
from lineclear.evaluation.figures import Figure
from lineclear.evaluation.generate import Generation, Prompt, StepHook, generate
from lineclear.gateway.conversation import Conversation, Message, ToolDefinition
from lineclear.gateway.detokenize import detokenize
from lineclear.gateway.served_model import TextAssets, load_text_assets
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams
from lineclear.speculate.counters import accept_length, accept_rate

ANSWER_MARGIN = 64
"""Tokens that an answer may run on past the right one's length before it is stopped as wrong."""

CODE_PROMPT_LEN = 512
CODE_OUTPUT_LEN = 128
SAMPLED_TEMPERATURE = 0.6
DAMAGED_SHARE = 0.1


@dataclass(frozen=True)
class EvaluationSize:
    """How much is run. The confidence of a share over n tasks is about ± 1/sqrt(n)."""

    num_edit_tasks: int = 200
    num_code_prompts: int = 48
    first_seed: int = HELD_OUT_FIRST_SEED


"""The first of the held-out seeds that are used."""


@dataclass(frozen=True)
class _Asked:
    """An edit task as tokens."""

    task: EditTask
    prompt: Prompt


class BundledEvaluation:
    """Evaluates a checkpoint that was trained on edit tasks and code.

    Args:
        model_dir: the checkpoint.
        config: of the engine; drafting must be on.
        size: how much to run.
    """

    def __init__(self, model_dir: Path, config: EngineConfig, size: EvaluationSize) -> None:
        self._model_dir = model_dir
        self._config = config
        self._size = size
        self._assets = load_text_assets(model_dir)

    def run(self) -> Iterator[Figure]:
        """Run everything; figures come as they are known."""
        asked = [self._ask(self._size.first_seed + number) for number in range(self._size.num_edit_tasks)]
        yield from self._edits(asked)
        yield from self._code()
        yield from self._damage(asked)

    def _edits(self, asked: Items[_Asked]) -> Iterator[Figure]:
        greedy = generate(self._engine(), [each.prompt for each in asked])
        exact = [self._is_exact(each, generation) for each, generation in zip(asked, greedy, strict=True)]
        yield Figure("edit_exact", _share(exact))
        for kind in sorted({each.task.kind for each in asked}):
            yield Figure(
                f"edit_exact_{kind}",
                _share([ok for ok, each in zip(exact, asked, strict=True) if each.task.kind == kind]),
            )
        yield from _draft_figures("edit", greedy)
        yield Figure("edit_prompt_len_mean", _mean([len(each.prompt.token_ids) for each in asked]), "tokens")
        yield Figure("edit_answer_len_mean", _mean([len(generation.token_ids) for generation in greedy]), "tokens")
        sampled = generate(self._engine(), [_sampled(each.prompt, number) for number, each in enumerate(asked)])
        yield from _draft_figures("edit_sampled", sampled)

    def _code(self) -> Iterator[Figure]:
        prompts = self._code_prompts()
        yield from _draft_figures("code", generate(self._engine(), prompts))
        sampled = [_sampled(prompt, number) for number, prompt in enumerate(prompts)]
        yield from _draft_figures("code_sampled", generate(self._engine(), sampled))

    def _damage(self, asked: Items[_Asked]) -> Iterator[Figure]:
        capture = PromptCapture(self._config.block_size)
        donor = self._ask(self._size.first_seed + self._size.num_edit_tasks)
        generate(self._engine(prefix_cache=False), [donor.prompt], after_step=capture)
        assert capture.captured is not None
        damage = PromptDamage(
            share=DAMAGED_SHARE, donor=capture.captured, block_size=self._config.block_size, seed=self._size.first_seed
        )
        damaged = self._generate_undivided(asked, damage)
        exact = [self._is_exact(each, generation) for each, generation in zip(asked, damaged, strict=True)]
        yield Figure("edit_exact_after_damage", _share(exact))
        yield from _draft_figures("edit_after_damage", damaged)
        yield Figure("damaged_blocks", damage.num_blocks_overwritten, "blocks")

    def _generate_undivided(self, asked: Items[_Asked], hook: StepHook) -> list[Generation]:
        return generate(self._engine(prefix_cache=False), [each.prompt for each in asked], after_step=hook)

    def _engine(self, *, prefix_cache: bool = True) -> Engine:
        config = replace(self._config, prefix_cache=prefix_cache, max_waiting=2 * self._size.num_edit_tasks)
        return build_engine(config, self._model_dir)

    def _ask(self, seed: int) -> _Asked:
        task = generate_task(seed)
        token_ids = prompt_token_ids(self._assets, task)
        answer_len = len(self._assets.tokenization.encode_prompt(task.answer_text, add_special_tokens=False))
        sampling = SamplingParams(max_tokens=answer_len + ANSWER_MARGIN, temperature=0.0)
        return _Asked(task, Prompt(tuple(token_ids), sampling))

    def _is_exact(self, asked: _Asked, generation: Generation) -> bool:
        text = detokenize(self._assets.tokenization.vocabulary, generation.token_ids)
        return generation.finish_reason == "stop" and check(asked.task, text)

    def _code_prompts(self) -> list[Prompt]:
        """Windows of held-out files, one a file, from the largest files down."""
        sampling = SamplingParams(max_tokens=CODE_OUTPUT_LEN, temperature=0.0, ignore_eos=True)
        prompts: list[Prompt] = []
        for text in sorted(load_corpus().held_out, key=len, reverse=True)[: self._size.num_code_prompts]:
            token_ids = self._assets.tokenization.encode_text(text)
            if len(token_ids) >= 2 * CODE_PROMPT_LEN:
                start = (len(token_ids) - CODE_PROMPT_LEN) // 2
                prompts.append(Prompt(tuple(token_ids[start : start + CODE_PROMPT_LEN]), sampling))
        return prompts


def prompt_token_ids(assets: TextAssets, task: EditTask) -> list[int]:
    """The tokens that ask for a task's answer."""
    if assets.template is None:
        raise CheckpointError("chat_template.jinja", "absent", "a chat template, to ask edit tasks with")
    conversation = Conversation(
        messages=tuple(Message(role=message["role"], content=message["content"]) for message in task.messages),
        tools=tuple(
            ToolDefinition(tool["function"]["name"], tool["function"]["parameters"], tool) for tool in task.tools or ()
        ),
    )
    rendered = assets.template.render(conversation)
    return assets.tokenization.encode_rendered(rendered.text, rendered.guard)


def _sampled(prompt: Prompt, number: int) -> Prompt:
    sampling = msgspec.structs.replace(prompt.sampling, temperature=SAMPLED_TEMPERATURE, seed=number)
    return replace(prompt, sampling=sampling)


def _draft_figures(name: str, generations: Items[Generation]) -> Iterator[Figure]:
    counts = DraftCounts()
    for generation in generations:
        counts.merge(generation.draft_counts)
    yield Figure(f"accept_length_{name}", accept_length(counts) or 0.0)
    yield Figure(f"accept_rate_{name}", accept_rate(counts) or 0.0)


def _share(outcomes: Items[bool]) -> float:
    return _mean([float(outcome) for outcome in outcomes])


def _mean(values: Items[float]) -> float:
    return sum(values) / len(values) if values else 0.0
