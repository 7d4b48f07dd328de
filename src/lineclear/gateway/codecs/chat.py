"""`/v1/chat/completions`: OpenAI's chat API with tools, reasoning and log-probabilities.

Source: OpenAI API reference, "Create chat completion"; `reasoning_content`, `top_k`, `min_p`, `chat_template_kwargs`
and the other additions as vLLM and SGLang name them, so that their clients work unchanged.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from lineclear.gateway.choice import AnswerFormat, ChoiceDelta
from lineclear.gateway.codecs.body import GenerationBody, JsonValue, decode_body
from lineclear.gateway.codecs.chat_messages import MessageBody, read_messages, read_tools
from lineclear.gateway.codecs.logprobs import chat_logprobs
from lineclear.gateway.codecs.model_name import check_model_name
from lineclear.gateway.codecs.openai_stream import OpenAiStream
from lineclear.gateway.codecs.prompt import render_prompt
from lineclear.gateway.codecs.sampling import (
    build_sampling,
    count_choices,
    refuse_continuous_usage,
    vary_seed,
)
from lineclear.gateway.codecs.tool_choice import choose_tools
from lineclear.gateway.codecs.unserved import CHAT, UnservedFields
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.conversation import Conversation
from lineclear.gateway.errors import ApiError, refuse
from lineclear.gateway.fragments import Content, Marker, Part, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from lineclear.gateway.generation import ApiCall, CallContext, ChoiceRequest, GenerationRequest, LastWords
from lineclear.gateway.session import session_of_body
from lineclear.gateway.sse import KEEP_ALIVE, comment, encode_json
from lineclear.gateway.template import RESERVED_VARIABLES
from lineclear.gateway.usage import Usage
from lineclear.gateway.vocabulary import Vocabulary

MAX_TOP_LOGPROBS = 20

MAX_MESSAGES = 65_536
"""Each takes some microseconds to read and to render. A conversation of a million tokens has fewer."""

MAX_TOOLS = 4096
"""Each has its schema taken apart. Agents declare up to some hundred."""


class ChatBody(GenerationBody, kw_only=True):
    """The body of a chat completion."""

    messages: Annotated[list[MessageBody], msgspec.Meta(max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


_UNSERVED = UnservedFields(CHAT)


class ChatCodec:
    """Reads chat completions."""

    api = "chat"

    def prepare(self, body: bytes, context: CallContext) -> ApiCall:
        """Read a body; see `Codec`."""
        chat = decode_body(body, ChatBody)
        check_model_name(chat.model, context.model)
        _UNSERVED.refuse_in(body)
        refuse_continuous_usage(chat)
        num_choices = count_choices(chat)
        conversation = read_conversation(chat)
        rendered, prompt_token_ids = render_prompt(conversation, context.model)
        sampling = build_sampling(
            chat,
            context.model,
            num_prompt_tokens=len(prompt_token_ids),
            max_tokens=_read_max_tokens(chat),
            logprobs=_read_logprobs(chat),
            prompt_param="messages",
        )
        request = GenerationRequest(
            request_id=context.request_id,
            choices=tuple(
                ChoiceRequest(prompt_token_ids=prompt_token_ids, sampling=vary_seed(sampling, idx))
                for idx in range(num_choices)
            ),
            answer_format=AnswerFormat(
                stop_strings=chat.stop_strings,
                min_tokens=sampling.min_tokens,
                skip_special_tokens=chat.skip_special_tokens is not False,
                interprets_tags=True,
                starts_thinking=rendered.ends_with(Marker.THINK_OPEN.value),
                tools=choose_tools(conversation.tools, chat.tool_choice).callable_tools,
                single_call=chat.parallel_tool_calls is False or bool(conversation.opened_call),
                opened_call=conversation.opened_call,
            ),
            want_draft_counts=chat.want_draft_figures,
            session_key=context.session_key or session_of_body(chat.prompt_cache_key),
        )
        reply = ChatReply(context, chat, num_choices)
        return ApiCall(request=request, reply=reply, is_stream=bool(chat.stream))


def read_conversation(chat: ChatBody) -> Conversation:
    """The conversation of a body, tools that may not be called left out.

    Raises:
        InvalidRequestError: A message or tool cannot be shown to the model.
    """
    if not chat.messages:
        raise refuse("messages", [], "at least one message")
    variables = dict(chat.chat_template_kwargs or {})
    for name in RESERVED_VARIABLES & variables.keys():
        raise refuse("chat_template_kwargs", name, "names that are not filled by other fields")
    if chat.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", chat.reasoning_effort)
    chosen = choose_tools(read_tools(chat.tools or []), chat.tool_choice)
    return Conversation(
        messages=read_messages(chat.messages),
        tools=chosen.shown_tools,
        opened_call=chosen.opened_call,
        template_variables=variables,
        add_generation_prompt=chat.add_generation_prompt is not False,
    )


def _read_max_tokens(chat: ChatBody) -> int | None:
    """The newer name wins, and is the one that an error names."""
    if chat.max_completion_tokens is None:
        return chat.max_tokens
    if chat.max_completion_tokens < 1:
        raise refuse("max_completion_tokens", chat.max_completion_tokens, "an integer of at least 1")
    return chat.max_completion_tokens


def _read_logprobs(chat: ChatBody) -> int | None:
    if not chat.logprobs:
        if chat.top_logprobs:
            raise refuse("top_logprobs", chat.top_logprobs, "0, unless logprobs is true")
        return None
    top_logprobs = chat.top_logprobs or 0
    if not 0 <= top_logprobs <= MAX_TOP_LOGPROBS:
        raise refuse("top_logprobs", top_logprobs, f"0 to {MAX_TOP_LOGPROBS}")
    return top_logprobs


class ChatReply:
    """Says an answer as chat completion chunks, or as one chat completion."""

    def __init__(self, context: CallContext, chat: ChatBody, num_choices: int) -> None:
        self._vocabulary: Vocabulary = context.model.assets.tokenization.vocabulary
        self._num_choices = num_choices
        self._want_logprobs = bool(chat.logprobs)
        self._stream = OpenAiStream(
            object_name="chat.completion",
            chunk_name="chat.completion.chunk",
            answer_id=f"chatcmpl-{context.request_id}",
            created=context.created,
            model=context.model.name,
            include_usage=chat.include_usage,
            want_draft_figures=chat.want_draft_figures,
        )

    def begin(self) -> bytes:
        """The role of each choice."""
        opening = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(idx, opening) for idx in range(self._num_choices))

    def delta(self, choice_idx: int, delta: ChoiceDelta) -> bytes:
        """A chunk for each part; the reason of the end in a chunk of its own."""
        objects = [rendered for part in delta.parts if (rendered := _delta_object(part)) is not None]
        logprobs = chat_logprobs(self._vocabulary, delta.logprobs) if self._want_logprobs and delta.logprobs else None
        if logprobs is not None and not objects:
            objects = [{"content": ""}]
        chunks = [self._chunk(choice_idx, item, logprobs if idx == 0 else None) for idx, item in enumerate(objects)]
        if delta.finish_reason is not None:
            chunks.append(self._chunk(choice_idx, {}, None, delta))
        return b"".join(chunks)

    def end(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Usage and draft figures where they are wanted, and the end of the stream."""
        return self._stream.end(choices, usage)

    def keep_alive(self) -> bytes:
        """A comment."""
        return KEEP_ALIVE

    def failure(self, error: ApiError, *, is_ready: bool) -> LastWords:  # noqa: ARG002 - the same either way
        """The error as a comment, for people, and a cut connection.

        Agents send a request again when its connection is cut. An event with an error in it ends the session of some.
        """
        return LastWords(comment(b"error " + encode_json(error.envelope())))

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """A chat completion."""
        objects = [self._choice(idx, choice) for idx, choice in enumerate(choices)]
        return self._stream.whole(objects, choices, usage)

    def _chunk(
        self,
        choice_idx: int,
        delta: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        ending: ChoiceDelta | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": choice_idx,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": ending.finish_reason if ending else None,
        }
        if ending is not None and ending.stop_reason is not None:
            choice["stop_reason"] = ending.stop_reason
        return self._stream.chunk([choice])

    def _choice(self, choice_idx: int, choice: CollectedChoice) -> dict[str, Any]:
        return {
            "index": choice_idx,
            "message": _message(choice),
            "logprobs": chat_logprobs(self._vocabulary, choice.logprobs) if self._want_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }


def _delta_object(part: Part) -> dict[str, Any] | None:
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallStart(call_idx, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": call_idx, "id": _new_call_id(), "type": "function", "function": function}]}
        case ToolCallArguments(call_idx, text):
            return {"tool_calls": [{"index": call_idx, "function": {"arguments": text}}]}
        case ToolCallEnd():
            return None


def _message(choice: CollectedChoice) -> dict[str, Any]:
    has_text = bool(choice.content) or not choice.tool_calls
    message: dict[str, Any] = {"role": "assistant", "content": choice.content if has_text else None, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [
            {"id": _new_call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.tool_calls
        ]
    return message


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
