"""A small tokenizer and chat template in GLM's format, made on the spot."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.fragments import Marker

SPECIAL = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")

TEMPLATE = """[gMASK]<sop>
{%- if tools -%}
<|system|># Tools
{%- for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{%- endfor -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|assistant|>{{ '<think>' + message.reasoning_content if message.reasoning_content else '' }}</think>
{{- message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key><arg_value>{{ value if value is string else value | tojson }}</arg_value>
{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- elif message.role == 'tool' -%}
<|observation|>{{ message.content }}
{%- else -%}
<|{{ message.role }}|>{{ message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{{ '<think>' if enable_thinking else '</think>' }}
{%- endif -%}
"""

_TEXT = [
    "def hello(name):\n    return 'hello ' + name\n",
    "the quick brown fox, weather in Paris",
    '{"city": "Paris"}',
] * 4


def build_tokenizer(*, has_markers: bool = True) -> bytes:
    """A byte-level BPE tokenizer as `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    if has_markers:
        tokenizer.add_tokens([AddedToken(marker.value, normalized=False) for marker in Marker])
    return tokenizer.to_str().encode()


def build_byte_fallback_tokenizer() -> bytes:
    """A BPE tokenizer with byte fallback, as `tokenizer.json`."""
    tokens = ["<unk>", "<s>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "a", "b", "▁a"]
    description = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 1,
                "content": "<s>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {token: idx for idx, token in enumerate(tokens)},
            "merges": [["▁", "a"]],
        },
    }
    return json.dumps(description).encode()


WEATHER_TOOL = ToolDefinition(
    "get_weather",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "raw": {}}},
    {},
)
