"""`/v1/messages`: Anthropic's Messages API with tools, thinking and cached tokens, and `/v1/messages/count_tokens`.

Source: Anthropic API reference, "Messages" and "Count message tokens"; what coding agents send beyond it.
"""

import json
from typing import Any, cast

from lineclear.gateway.choice import AnswerFormat
from lineclear.gateway.codecs.body import decode_body
from lineclear.gateway.codecs.messages_body import MessagesBody, OutputFormatBody, ThinkingBody
from lineclear.gateway.codecs.messages_input import read_messages, read_system
from lineclear.gateway.codecs.messages_reply import MessagesReply
from lineclear.gateway.codecs.messages_tools import choose_tools, read_tools
from lineclear.gateway.codecs.model_name import check_model_name
from lineclear.gateway.codecs.prompt import render_prompt
from lineclear.gateway.codecs.sampling import build_sampling
from lineclear.gateway.codecs.unserved import MESSAGES, UnservedFields
from lineclear.gateway.conversation import Conversation, Message, ToolDefinition
from lineclear.gateway.errors import refuse
from lineclear.gateway.fragments import Marker
from lineclear.gateway.generation import ApiCall, CallContext, ChoiceRequest, GenerationRequest
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.session import session_of_body

_THINKS = {"enabled": True, "adaptive": True, "disabled": False}

_UNSERVED = UnservedFields(MESSAGES)


class MessagesCodec:
    """Reads requests for messages."""

    api = "messages"

    def prepare(self, body: bytes, context: CallContext) -> ApiCall:
        """Read a body; see `Codec`."""
        asked = _read_body(body, context.model)
        conversation, callable_tools = read_conversation(asked)
        rendered, prompt_token_ids = render_prompt(conversation, context.model)
        sampling = build_sampling(
            asked,
            context.model,
            num_prompt_tokens=len(prompt_token_ids),
            max_tokens=asked.max_tokens,
            logprobs=None,
            prompt_param="messages",
        )
        choice = asked.tool_choice
        request = GenerationRequest(
            request_id=context.request_id,
            choices=(ChoiceRequest(prompt_token_ids=prompt_token_ids, sampling=sampling),),
            answer_format=AnswerFormat(
                stop_strings=tuple(asked.stop_sequences or ()),
                min_tokens=sampling.min_tokens,
                interprets_tags=True,
                starts_thinking=rendered.ends_with(Marker.THINK_OPEN.value),
                tools=callable_tools,
                single_call=bool(conversation.opened_call)
                or (choice is not None and choice.disable_parallel_tool_use is True),
                opened_call=conversation.opened_call,
            ),
            session_key=context.session_key or session_of_body(asked.prompt_cache_key, _user_id(asked.metadata)),
        )
        reply = MessagesReply(
            context,
            num_prompt_tokens=len(prompt_token_ids),
            fills_context=asked.max_tokens is None or asked.max_tokens > sampling.max_tokens,
        )
        return ApiCall(request=request, reply=reply, is_stream=bool(asked.stream))


def _user_id(metadata: object) -> object:
    """What clients put their session's name in."""
    return cast("dict[str, object]", metadata).get("user_id") if isinstance(metadata, dict) else None


def count_tokens(body: bytes, model: ServedModel) -> int:
    """The tokens of the prompt that a body makes.

    Raises:
        ApiError: The body could not be served as it stands.
    """
    conversation, _ = read_conversation(_read_body(body, model))
    _, prompt_token_ids = render_prompt(conversation, model)
    return len(prompt_token_ids)


def _read_body(body: bytes, model: ServedModel) -> MessagesBody:
    asked = decode_body(body, MessagesBody)
    check_model_name(asked.model, model)
    _UNSERVED.refuse_in(body)
    return asked


def read_conversation(asked: MessagesBody) -> tuple[Conversation, tuple[ToolDefinition, ...]]:
    """The conversation of a body, and the tools that may be called.

    Raises:
        InvalidRequestError: A message or tool cannot be shown to the model.
    """
    if not asked.messages:
        raise refuse("messages", [], "at least one message")
    tools = read_tools(asked.tools or [])
    read = read_messages(asked.messages, tools)
    chosen = choose_tools(tools, asked.tool_choice, read.loaded)
    variables = _template_variables(asked)
    if asked.thinking is not None and variables["enable_thinking"] and (read.continuation or chosen.opened_call):
        allowed = "disabled: an answer that is begun for the model has no thinking"
        raise refuse("thinking.type", asked.thinking.type, allowed)
    conversation = Conversation(
        messages=(*_system_messages(asked), *read.messages),
        tools=chosen.shown_tools,
        template_variables=variables,
        continuation=read.continuation,
        opened_call=chosen.opened_call,
    )
    return conversation, chosen.callable_tools


def _system_messages(asked: MessagesBody) -> tuple[Message, ...]:
    text = read_system(asked.system)
    if asked.output_config is not None and asked.output_config.format is not None:
        text += _describe_format(asked.output_config.format)
    return (Message(role="system", content=text),) if text else ()


def _describe_format(asked: OutputFormatBody) -> str:
    if asked.type != "json_schema" or asked.schema is None:
        raise refuse("output_config.format.type", asked.type, "json_schema, with a schema")
    schema = json.dumps(asked.schema, ensure_ascii=False)
    return f"\n\nAnswer with JSON of this schema, and with nothing else:\n{schema}"


def _template_variables(asked: MessagesBody) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if asked.thinking is not None:
        variables["enable_thinking"] = _read_thinking(asked.thinking)
    if asked.output_config is not None and asked.output_config.effort is not None:
        variables["reasoning_effort"] = asked.output_config.effort
    return variables


def _read_thinking(thinking: ThinkingBody) -> bool:
    if thinking.type not in _THINKS:
        raise refuse("thinking.type", thinking.type, ", ".join(_THINKS))
    return _THINKS[thinking.type]
