"""`/v1/completions`: text in, its continuation out.

A prompt is one string, several, one list of token ids, or several. A prompt's author may spell control tokens: this is
the API for those who write the chat format themselves.

Source: OpenAI API reference, "Create completion".
"""

from collections.abc import Sequence
from typing import Any

from lineclear.gateway.choice import AnswerFormat, ChoiceDelta, PlacedToken
from lineclear.gateway.codecs.body import GenerationBody, decode_body
from lineclear.gateway.codecs.logprobs import completion_logprobs
from lineclear.gateway.codecs.model_name import check_model_name
from lineclear.gateway.codecs.openai_stream import OpenAiStream
from lineclear.gateway.codecs.sampling import (
    MAX_CHOICES,
    build_sampling,
    count_choices,
    refuse_continuous_usage,
    refuse_hopeless,
    refuse_too_long,
    vary_seed,
)
from lineclear.gateway.codecs.unserved import COMPLETIONS, UnservedFields
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.detokenize import detokenize
from lineclear.gateway.errors import ApiError, refuse
from lineclear.gateway.fragments import Content
from lineclear.gateway.generation import ApiCall, CallContext, ChoiceRequest, GenerationRequest, LastWords
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.session import session_of_body
from lineclear.gateway.sse import KEEP_ALIVE
from lineclear.gateway.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this API."""


class CompletionBody(GenerationBody, kw_only=True):
    """The body of a completion."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


_UNSERVED = UnservedFields(COMPLETIONS)


class CompletionCodec:
    """Reads completions."""

    api = "completions"

    def prepare(self, body: bytes, context: CallContext) -> ApiCall:
        """Read a body; see `Codec`."""
        completion = decode_body(body, CompletionBody)
        check_model_name(completion.model, context.model)
        _UNSERVED.refuse_in(body)
        refuse_continuous_usage(completion)
        _refuse_combinations(completion)
        num_choices = count_choices(completion)
        prompts = read_prompts(completion, num_choices, context.model)
        choices = tuple(
            choice for prompt in prompts for choice in _read_choices(completion, prompt, num_choices, context.model)
        )
        request = GenerationRequest(
            request_id=context.request_id,
            choices=choices,
            answer_format=AnswerFormat(
                stop_strings=completion.stop_strings,
                min_tokens=completion.min_tokens or 0,
                skip_special_tokens=completion.skip_special_tokens is not False,
            ),
            want_draft_counts=completion.want_draft_figures,
            choices_param="prompt" if num_choices == 1 else "n",
            session_key=context.session_key or session_of_body(completion.prompt_cache_key),
        )
        reply = CompletionReply(context, completion, [choice.prompt_token_ids for choice in choices])
        return ApiCall(request=request, reply=reply, is_stream=bool(completion.stream))


def read_prompts(completion: CompletionBody, num_choices: int, model: ServedModel) -> list[list[int]]:
    """The tokens of each prompt.

    Raises:
        InvalidRequestError: There is no prompt, or too many, or one has no tokens, too many or unknown ones.
    """
    prompts = _split_prompts(completion.prompt)
    if not prompts:
        raise refuse("prompt", [], "at least one prompt")
    if len(prompts) > MAX_CHOICES:
        raise refuse("prompt", f"{len(prompts)} prompts", f"at most {MAX_CHOICES}")
    if len(prompts) * num_choices > MAX_CHOICES:
        raise refuse("n", num_choices, f"at most {MAX_CHOICES} choices for all {len(prompts)} prompts together")
    return [_read_prompt(prompt, completion, model) for prompt in prompts]


def _split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    if not token_ids:
        return [item for item in prompt if not isinstance(item, int)]
    if len(token_ids) != len(prompt):
        raise refuse("prompt", "numbers among texts or lists", "a string, token ids, or a list of either")
    return [token_ids]


def _read_prompt(prompt: str | list[int], completion: CompletionBody, model: ServedModel) -> list[int]:
    if isinstance(prompt, str):
        refuse_hopeless(prompt, model, "prompt")
        tokenization = model.assets.tokenization
        token_ids = tokenization.encode_prompt(prompt, add_special_tokens=completion.add_special_tokens is not False)
    else:
        token_ids = prompt
    if not token_ids:
        raise refuse("prompt", prompt, "at least one token")
    refuse_too_long(len(token_ids), model, "prompt")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < model.vocab_size:
            raise refuse("prompt", token_id, f"token ids from 0 to {model.vocab_size - 1}")
    return token_ids


def _read_choices(
    completion: CompletionBody, prompt: list[int], num_choices: int, model: ServedModel
) -> list[ChoiceRequest]:
    sampling = build_sampling(
        completion,
        model,
        num_prompt_tokens=len(prompt),
        max_tokens=DEFAULT_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens,
        logprobs=completion.logprobs,
        prompt_param="prompt",
    )
    return [ChoiceRequest(prompt_token_ids=prompt, sampling=vary_seed(sampling, idx)) for idx in range(num_choices)]


def _refuse_combinations(completion: CompletionBody) -> None:
    if completion.best_of is not None and completion.best_of != (completion.n or 1):
        raise refuse("best_of", completion.best_of, "null, or the same as n")
    if completion.echo and completion.logprobs is not None:
        raise refuse("logprobs", completion.logprobs, "null with echo: prompts have no log-probabilities")


class CompletionReply:
    """Says an answer as completion chunks, or as one completion."""

    def __init__(self, context: CallContext, completion: CompletionBody, prompts: list[list[int]]) -> None:
        self._vocabulary = context.model.assets.tokenization.vocabulary
        self._want_logprobs = completion.logprobs is not None
        self._echoes = [detokenize(self._vocabulary, prompt) if completion.echo else "" for prompt in prompts]
        self._stream = OpenAiStream(
            object_name="text_completion",
            chunk_name="text_completion",
            answer_id=f"cmpl-{context.request_id}",
            created=context.created,
            model=context.model.name,
            include_usage=completion.include_usage,
            want_draft_figures=completion.want_draft_figures,
        )

    def begin(self) -> bytes:
        """The prompts, where they are echoed."""
        return b"".join(self._chunk(idx, echo) for idx, echo in enumerate(self._echoes) if echo)

    def delta(self, choice_idx: int, delta: ChoiceDelta) -> bytes:
        """A chunk for the text; the reason of the end in a chunk of its own."""
        text = "".join(part.text for part in delta.parts if isinstance(part, Content))
        logprobs = self._logprobs(delta.logprobs) if delta.logprobs else None
        chunks = [self._chunk(choice_idx, text, logprobs)] if text or logprobs else []
        if delta.finish_reason is not None:
            chunks.append(self._chunk(choice_idx, "", None, delta))
        return b"".join(chunks)

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Usage and draft figures where they are wanted, and the end of the stream."""
        return self._stream.end(choices, usage)

    def keep_alive(self) -> bytes:
        """A comment."""
        return KEEP_ALIVE

    def failure(self, error: ApiError, *, is_ready: bool) -> LastWords:  # noqa: ARG002 - the same either way
        """The error as an event, and a cut connection."""
        return self._stream.failure(error)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """A completion."""
        objects = [
            _choice_object(idx, self._echoes[idx] + choice.content, self._logprobs(choice.logprobs), choice)
            for idx, choice in enumerate(choices)
        ]
        return self._stream.whole(objects, choices, usage)

    def _chunk(
        self,
        choice_idx: int,
        text: str,
        logprobs: dict[str, Any] | None = None,
        ending: ChoiceDelta | None = None,
    ) -> bytes:
        return self._stream.chunk([_choice_object(choice_idx, text, logprobs, ending or ChoiceDelta())])

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        return completion_logprobs(self._vocabulary, tokens) if self._want_logprobs else None


def _choice_object(
    choice_idx: int, text: str, logprobs: dict[str, Any] | None, ending: ChoiceDelta | CollectedChoice
) -> dict[str, Any]:
    choice = {"index": choice_idx, "text": text, "logprobs": logprobs, "finish_reason": ending.finish_reason}
    return choice if ending.stop_reason is None else choice | {"stop_reason": ending.stop_reason}
