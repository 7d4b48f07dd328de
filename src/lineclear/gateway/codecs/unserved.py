"""Fields that other servers know and this one does not serve.

The rule: a field that would change the answer is refused by name, unless its value asks for nothing (null, false,
empty, or a neutral number). What is only bookkeeping (`user`, `store`, `metadata`, `service_tier`, `safety_identifier`,
`priority`) or only makes an answer come sooner (`prediction`) is ignored, and so is what no server knows.

Source: OpenAI API reference, "Create chat completion" and "Create completion"; the sampling and request fields of vLLM,
SGLang, llama.cpp, text-generation-webui and Hugging Face `transformers`; Z.ai, DashScope and OpenRouter for reasoning.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from lineclear.gateway.codecs.body import JsonValue, decode_body
from lineclear.gateway.errors import refuse

_NOTHING: tuple[JsonValue, ...] = (None, False, "", [], {})


@dataclass(frozen=True, slots=True)
class Unserved:
    """One field: what is allowed in words, and the values that ask for nothing."""

    allowed: str
    neutral: tuple[JsonValue, ...] = _NOTHING

    def asks_for_nothing(self, value: JsonValue) -> bool:
        """Whether the answer is the same with this value and without it."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.neutral)


def _only(*neutral: JsonValue, instead: str) -> Unserved:
    return Unserved(instead, (None, *neutral))


def _number(neutral: float) -> Unserved:
    return Unserved(f"null or {neutral}: this way of sampling is not served", (*_NOTHING, neutral))


_GRAMMAR = Unserved("null: the output is not constrained to a grammar, a schema or a choice")
_TEXT_FORMAT = Unserved("text: the output is not constrained to a grammar", (*_NOTHING, "text", {"type": "text"}))
_SEARCH = Unserved("null or false: one continuation is sampled for each choice, no others are tried")
_TOKENS = Unserved("null: say what must not be chosen in logit_bias")
_LOGITS = Unserved("null: nobody else's code changes the choice of tokens")
_REPORT = Unserved("null or false: the answer does not report this")
_SHOWN = Unserved("null or false: what ends an answer is not shown; stop_reason names it")
_ADAPTER = Unserved("null: one model is served, without adapters")
_SALT = Unserved("null: prompts with the same beginning share their cache")
_BUDGET = _only(instead="null: the length of reasoning is not limited by itself; see max_tokens")
_THINKING = _only(instead="null: say it in chat_template_kwargs.enable_thinking")
_SHOWN_REASONING = _only(True, instead="null or true: reasoning is always in reasoning_content")

CONSTRAINTS: Mapping[str, Unserved] = {
    "response_format": _TEXT_FORMAT,
    "guided_json": _GRAMMAR,
    "guided_regex": _GRAMMAR,
    "guided_choice": _GRAMMAR,
    "guided_grammar": _GRAMMAR,
    "structured_outputs": _GRAMMAR,
    "structural_tag": _GRAMMAR,
    "regex": _GRAMMAR,
    "json_schema": _GRAMMAR,
    "ebnf": _GRAMMAR,
    "grammar": _GRAMMAR,
    "allowed_token_ids": _TOKENS,
    "bad_words": _TOKENS,
    "bad_words_ids": _TOKENS,
    "banned_tokens": _TOKENS,
    "banned_strings": _TOKENS,
    "logits_processors": _LOGITS,
    "custom_logit_processor": _LOGITS,
    "vllm_xargs": _LOGITS,
}

SAMPLERS: Mapping[str, Unserved] = {
    "typical_p": _number(1),
    "tfs_z": _number(1),
    "tfs": _number(1),
    "top_a": _number(0),
    "top_n_sigma": Unserved("null or -1: this way of sampling is not served", (*_NOTHING, 0, -1)),
    "xtc_probability": _number(0),
    "dry_multiplier": _number(0),
    "mirostat": _number(0),
    "mirostat_mode": _number(0),
    "dynatemp_range": _number(0),
    "smoothing_factor": _number(0),
    "eta_cutoff": _number(0),
    "epsilon_cutoff": _number(0),
    "penalty_alpha": _number(0),
    "guidance_scale": _number(1),
    "encoder_repetition_penalty": _number(1),
    "no_repeat_ngram_size": _number(0),
    "length_penalty": _number(1),
    "diversity_penalty": _number(0),
    "num_beams": _number(1),
    "num_beam_groups": _number(1),
    "beam_width": _number(1),
    "use_beam_search": _SEARCH,
    "early_stopping": _SEARCH,
    "do_sample": _only(True, instead="null or true: for the likeliest tokens say temperature 0"),
}

OUTPUTS: Mapping[str, Unserved] = {
    "include_stop_str_in_output": _SHOWN,
    "no_stop_trim": _SHOWN,
    "stop_regex": Unserved("null: say strings in stop"),
    "prompt_logprobs": _only(False, instead="null: prompts have no log-probabilities"),
    "logprob_start_len": _only(-1, instead="null or -1: prompts have no log-probabilities"),
    "return_logprob": Unserved("null or false: say logprobs"),
    "top_logprobs_num": Unserved("null or 0: say logprobs", (*_NOTHING, 0)),
    "token_ids_logprob": _REPORT,
    "return_text_in_logprobs": _REPORT,
    "return_token_ids": _REPORT,
    "return_tokens_as_token_ids": _REPORT,
    "return_hidden_states": _REPORT,
    "include_reasoning": _SHOWN_REASONING,
    "separate_reasoning": _SHOWN_REASONING,
    "stream_reasoning": _SHOWN_REASONING,
    "thinking_budget": _BUDGET,
    "thinking_token_budget": _BUDGET,
    "max_thinking_tokens": _BUDGET,
    "verbosity": _only("medium", instead="null or medium: say it in the messages"),
    "audio": Unserved("null: the output is text"),
    "modalities": Unserved('null or ["text"]: the output is text', (*_NOTHING, ["text"])),
    "web_search_options": _only(False, instead="null: nothing is looked up"),
    "lora_path": _ADAPTER,
    "lora_request": _ADAPTER,
    "cache_salt": _SALT,
    "extra_key": _SALT,
    "max_new_tokens": Unserved("null: say max_tokens"),
    "n_predict": _only(-1, instead="null: say max_tokens"),
    "stop_sequences": Unserved("null: say stop"),
    "repeat_penalty": Unserved("null: say repetition_penalty", (*_NOTHING, 1)),
    "sampling_seed": _only(instead="null: say seed"),
}

PROMPTS: Mapping[str, Unserved] = {
    "truncate_prompt_tokens": _only(instead="null: a prompt is answered whole, or refused"),
    "prompt_embeds": Unserved("null: prompts are text or tokens"),
    "input_ids": Unserved("null: say token ids in prompt, to /v1/completions"),
    "chat_template": Unserved("null: the checkpoint's own template renders the messages"),
    "documents": Unserved("null: say them in the messages"),
    "thinking": _THINKING,
    "enable_thinking": _THINKING,
    "reasoning": _only({}, instead="null: say it in reasoning_effort"),
}

GENERATION: Mapping[str, Unserved] = CONSTRAINTS | SAMPLERS | OUTPUTS | PROMPTS
"""What neither of the generating APIs serves."""

CHAT_PROMPTS: Mapping[str, Unserved] = PROMPTS | {
    "functions": Unserved("null: say tools"),
    "function_call": _only("auto", "none", instead="null: say tool_choice"),
    "continue_final_message": Unserved("false: the model always begins a message of its own"),
    "add_special_tokens": Unserved("false: the chat template writes all control tokens"),
    "prompt": Unserved("null: say messages"),
}

CHAT: Mapping[str, Unserved] = (
    GENERATION
    | CHAT_PROMPTS
    | {
        "echo": Unserved("false: the answer is the new message only"),
        "suffix": Unserved("null: text is only continued"),
        "best_of": Unserved("null or 1: every choice is in the answer", (*_NOTHING, 1)),
    }
)
"""What chat completions do not serve."""

COMPLETIONS: Mapping[str, Unserved] = GENERATION | {
    "suffix": Unserved("null: text is only continued"),
    "max_completion_tokens": _only(instead="null: say max_tokens"),
    "top_logprobs": Unserved("null: say their number in logprobs", (*_NOTHING, 0)),
    "messages": Unserved("null: say them to /v1/chat/completions"),
    "tools": Unserved("null: say them to /v1/chat/completions"),
    "chat_template_kwargs": Unserved("null: no template renders this prompt"),
    "reasoning_effort": Unserved("null: no template renders this prompt"),
}
"""What plain completions do not serve."""

MESSAGES: Mapping[str, Unserved] = {
    name: row for name, row in GENERATION.items() if name not in {"stop_sequences", "thinking"}
} | {
    "response_format": Unserved("null: say output_config.format"),
    "enable_thinking": _only(instead="null: say it in thinking"),
    "reasoning": _only({}, instead="null: say it in thinking and output_config.effort"),
    "mcp_servers": Unserved("null or []: nobody else's tools are run here"),
    "container": Unserved("null: nothing is run here"),
    "prompt": Unserved("null: say messages"),
    "stop": Unserved("null: say stop_sequences"),
    "max_completion_tokens": _only(instead="null: say max_tokens"),
    "max_tokens_to_sample": _only(instead="null: say max_tokens"),
    "n": Unserved("null or 1: a message has one answer", (*_NOTHING, 1)),
    "parallel_tool_calls": _only(instead="null: say tool_choice.disable_parallel_tool_use"),
    "reasoning_effort": _only(instead="null: say output_config.effort"),
    "chat_template_kwargs": Unserved("null: say it in thinking"),
    "logprobs": Unserved("null or false: the answer does not report this"),
    "skip_special_tokens": _only(True, instead="null or true: control tokens are not shown"),
}
"""What `/v1/messages` does not serve. Clients send much that means nothing here (betas, cache_control): ignored."""

RESPONSES: Mapping[str, Unserved] = {name: row for name, row in GENERATION.items() if name != "reasoning"} | {
    "previous_response_id": Unserved("null: nothing is stored; say the whole conversation in input"),
    "conversation": Unserved("null: nothing is stored; say the whole conversation in input"),
    "prompt": Unserved("null: nothing is stored; say it in instructions and input"),
    "background": Unserved("null or false: the answer comes on the connection that asks for it"),
    "truncation": _only("disabled", instead="null or disabled: a prompt is answered whole, or refused"),
    "context_management": Unserved("null or []: a prompt is answered whole, or refused"),
    "top_logprobs": Unserved("null or 0: the answer does not report this", (*_NOTHING, 0)),
    "logprobs": Unserved("null or false: the answer does not report this"),
    "response_format": Unserved("null: say text.format"),
    "messages": Unserved("null: say input"),
    "max_tokens": _only(instead="null: say max_output_tokens"),
    "max_completion_tokens": _only(instead="null: say max_output_tokens"),
    "stop": Unserved("null: this API has no stop strings; /v1/chat/completions has"),
    "n": Unserved("null or 1: a response is one answer", (*_NOTHING, 1)),
    "reasoning_effort": _only(instead="null: say reasoning.effort"),
    "chat_template_kwargs": Unserved("null: say it in reasoning"),
    "skip_special_tokens": _only(True, instead="null or true: control tokens are not shown"),
}
"""What `/v1/responses` does not serve."""

_TOKEN_STRINGS: Mapping[str, Unserved] = {"return_token_strs": Unserved("false: /detokenize spells tokens")}

TOKENIZE_TEXT: Mapping[str, Unserved] = PROMPTS | _TOKEN_STRINGS
"""What `/tokenize` does not serve with a text."""

TOKENIZE_CHAT: Mapping[str, Unserved] = {
    name: row for name, row in (CHAT_PROMPTS | _TOKEN_STRINGS).items() if name != "prompt"
}
"""What `/tokenize` does not serve with a conversation, which goes before a text."""


class UnservedFields:
    """Finds the fields of one table in bodies.

    Args:
        table: the fields.
    """

    def __init__(self, table: Mapping[str, Unserved]) -> None:
        self._table = table
        self._kind = msgspec.defstruct("Body", [(name, JsonValue, None) for name in table])

    def refuse_in(self, body: bytes) -> None:
        """Refuse a body that asks for something that is not served.

        Raises:
            InvalidRequestError: It does; the error names the field.
        """
        fields = decode_body(body, self._kind)
        for name, row in self._table.items():
            value: JsonValue = getattr(fields, name)
            if not row.asks_for_nothing(value):
                raise refuse(name, value, row.allowed, "unserved_field")
