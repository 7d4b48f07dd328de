"""`/v1/responses`: OpenAI's Responses API with tools and reasoning, without a store.

Source: OpenAI API reference, "Create a model response" and "Streaming events"; what coding agents send beyond it.
"""

from typing import Any

import msgspec

from lineclear.gateway.choice import AnswerFormat
from lineclear.gateway.codecs.body import decode_body
from lineclear.gateway.codecs.model_name import check_model_name
from lineclear.gateway.codecs.prompt import render_prompt
from lineclear.gateway.codecs.responses_body import ReasoningBody, ResponsesBody
from lineclear.gateway.codecs.responses_input import read_input
from lineclear.gateway.codecs.responses_reply import ResponsesReply
from lineclear.gateway.codecs.responses_tools import ResponseTools, read_tools
from lineclear.gateway.codecs.sampling import build_sampling
from lineclear.gateway.codecs.tool_choice import choose_tools
from lineclear.gateway.codecs.unserved import RESPONSES, UnservedFields
from lineclear.gateway.conversation import Conversation, Message, ToolDefinition
from lineclear.gateway.errors import refuse
from lineclear.gateway.fragments import Marker
from lineclear.gateway.generation import ApiCall, CallContext, ChoiceRequest, GenerationRequest
from lineclear.gateway.session import session_of_body
from lineclear.protocol.sampling import SamplingParams

_UNSERVED = UnservedFields(RESPONSES)


class ResponsesCodec:
    """Reads requests for responses."""

    api = "responses"

    def prepare(self, body: bytes, context: CallContext) -> ApiCall:
        """Read a body; see `Codec`."""
        asked = decode_body(body, ResponsesBody)
        check_model_name(asked.model, context.model)
        _UNSERVED.refuse_in(body)
        tools = read_tools(asked.tools or [])
        conversation, callable_tools = read_conversation(asked, tools)
        rendered, prompt_token_ids = render_prompt(conversation, context.model)
        sampling = build_sampling(
            asked,
            context.model,
            num_prompt_tokens=len(prompt_token_ids),
            max_tokens=_read_max_tokens(asked),
            logprobs=None,
            prompt_param="input",
        )
        request = GenerationRequest(
            request_id=context.request_id,
            choices=(ChoiceRequest(prompt_token_ids=prompt_token_ids, sampling=sampling),),
            answer_format=AnswerFormat(
                min_tokens=sampling.min_tokens,
                interprets_tags=True,
                starts_thinking=rendered.ends_with(Marker.THINK_OPEN.value),
                tools=callable_tools,
                single_call=asked.parallel_tool_calls is False or bool(conversation.opened_call),
                opened_call=conversation.opened_call,
            ),
            session_key=context.session_key or session_of_body(asked.prompt_cache_key),
        )
        reply = ResponsesReply(context, _echo(asked, sampling), tools)
        return ApiCall(request=request, reply=reply, is_stream=bool(asked.stream))


def read_conversation(asked: ResponsesBody, tools: ResponseTools) -> tuple[Conversation, tuple[ToolDefinition, ...]]:
    """The conversation of a body, and the tools that may be called.

    Raises:
        InvalidRequestError: An item or tool cannot be shown to the model.
    """
    messages = read_input(asked.input, tools)
    if asked.instructions:
        messages = (Message(role="system", content=asked.instructions), *messages)
    if not messages:
        raise refuse("input", [], "at least one item, or instructions")
    if asked.text is not None and asked.text.format is not None and asked.text.format.type != "text":
        allowed = "text: the output is not constrained to a grammar"
        raise refuse("text.format.type", asked.text.format.type, allowed, "unserved_field")
    chosen = choose_tools(tools.definitions(), asked.tool_choice)
    conversation = Conversation(
        messages=messages,
        tools=chosen.shown_tools,
        opened_call=chosen.opened_call,
        template_variables=_template_variables(asked.reasoning),
        param="input",
    )
    return conversation, chosen.callable_tools


def _template_variables(reasoning: ReasoningBody | None) -> dict[str, Any]:
    """Who says how much to think wants that it is thought, except with effort `none`."""
    if reasoning is None or reasoning.effort is None:
        return {}
    if reasoning.effort == "none":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": reasoning.effort}


def _read_max_tokens(asked: ResponsesBody) -> int | None:
    """The newest name of `max_tokens`, and the one that an error names."""
    if asked.max_output_tokens is not None and asked.max_output_tokens < 1:
        raise refuse("max_output_tokens", asked.max_output_tokens, "an integer of at least 1")
    return asked.max_output_tokens


def _echo(asked: ResponsesBody, sampling: SamplingParams) -> dict[str, Any]:
    """What a response says of its request."""
    return {
        "background": False,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": msgspec.to_builtins(asked.reasoning or ReasoningBody()),
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        "tools": asked.tools or [],
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }
