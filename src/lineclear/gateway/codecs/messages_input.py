"""Conversations of Anthropic's Messages API, brought into the shape of `conversation`.

| sent | understood as |
|---|---|
| `system`, messages of role `system` | system messages where they stand, without the lines described below |
| text blocks | the texts, one after the other |
| `thinking` | reasoning; its signature says nothing here |
| `redacted_thinking`, blocks of tools that Anthropic's servers ran | nothing |
| `tool_use` | a call; an input that is no object becomes one |
| `tool_result` | a tool's message, before or after the text that it came with |
| in a result: an image or a file | a note that it cannot be read: the user can take nothing back there |
| in a result: `tool_reference` | the declared tool; its name alone, where that was shown before |
| `document` with text, `search_result` | title and text |
| `cache_control`, anywhere | nothing: the prefix cache finds by itself what prompts share |
| a last message of the assistant with nothing but text | the beginning of the answer |

Some clients begin `system` with a line for Anthropic's accounts that is another one for each session or request
(`x-anthropic-billing-header: …`). It would cost the whole prefix cache, and says nothing to a model.

What the model could not be shown is refused: images and files that the user sent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.codecs.chat_messages import read_arguments
from lineclear.gateway.codecs.messages_body import Block, Content, MessageBody, NestedContent, Source
from lineclear.gateway.codecs.messages_tools import DeclaredTools
from lineclear.gateway.codecs.turns import Turns
from lineclear.gateway.conversation import Message, PastToolCall
from lineclear.gateway.errors import refuse

_PREAMBLE = re.compile(r"(?:[ \t]*x-anthropic-[^\r\n]*(?:\r?\n|$))+")

_ROLES = "user, assistant or system"

_LEFT_OUT = frozenset({"redacted_thinking", "server_tool_use", "container_upload", "compaction"})

_READABLE = "text, thinking, tool_use, tool_result, search_result, or document with text: no images, sounds or files"

_ERROR_PREFIX = "Error: "


@dataclass(slots=True)
class ReadMessages:
    """What the messages of a request come to."""

    messages: tuple[Message, ...] = ()
    continuation: str = ""
    """The beginning of the answer."""
    loaded: dict[str, None] = field(default_factory=dict[str, None])
    """Names of tools that results refer to, in the order of the first references."""


def read_system(system: Content | None) -> str:
    """The text of the `system` field.

    Raises:
        InvalidRequestError: A block of it is no text.
    """
    return "" if system is None else _system_text(system, "system")


def read_messages(bodies: list[MessageBody], tools: DeclaredTools) -> ReadMessages:
    """The messages of a conversation.

    Raises:
        InvalidRequestError: One of them cannot be shown to the model.
    """
    return _MessageReader(tools).read(bodies)


class _MessageReader:
    def __init__(self, tools: DeclaredTools) -> None:
        self._tools = tools
        self._turns = Turns()
        self._result = ReadMessages()

    def read(self, bodies: list[MessageBody]) -> ReadMessages:
        for idx, body in enumerate(bodies):
            self._read_message(body, f"messages[{idx}]")
        messages = self._turns.messages()
        if bodies[-1].role == "assistant" and _is_beginning(messages[-1]):
            self._result.continuation = messages[-1].content
            messages = messages[:-1]
        self._result.messages = messages
        return self._result

    def _read_message(self, body: MessageBody, path: str) -> None:
        match body.role:
            case "system" | "developer":
                content = [] if body.content is None else body.content
                if text := _system_text(content, f"{path}.content"):
                    self._turns.add(Message(role="system", content=text))
            case "user":
                self._read_user(_blocks(body.content), f"{path}.content")
            case "assistant":
                self._turns.open()
                for idx, block in enumerate(_blocks(body.content)):
                    self._read_assistant_block(block, f"{path}.content[{idx}]")
            case _:
                raise refuse(f"{path}.role", body.role, _ROLES)

    def _read_user(self, blocks: Sequence[Block], path: str) -> None:
        texts: list[str] = []
        has_results = False
        for idx, block in enumerate(blocks):
            if block.type != "tool_result":
                texts.append(_user_text(block, f"{path}[{idx}]"))
                continue
            has_results = True
            self._add_user(texts)
            texts = []
            self._turns.add(self._read_result(block, f"{path}[{idx}]"))
        if texts or not has_results:
            self._turns.add(Message(role="user", content="".join(texts)))

    def _add_user(self, texts: list[str]) -> None:
        if texts:
            self._turns.add(Message(role="user", content="".join(texts)))

    def _read_assistant_block(self, block: Block, path: str) -> None:
        match block.type:
            case "thinking":
                self._turns.add_reasoning(block.thinking or "")
            case "text":
                self._turns.add_text(_text_of(block, path))
            case "tool_use":
                if block.name is None:
                    raise refuse(f"{path}.name", None, "the name of the tool")
                self._turns.add_call(PastToolCall(block.id or "", block.name, read_arguments(block.input)))
            case _ if _is_left_out(block):
                pass
            case _:
                raise refuse(f"{path}.type", block.type, _READABLE)

    def _read_result(self, block: Block, path: str) -> Message:
        content = convert_field({"content": block.content}, NestedContent, path).content or ""
        text = content if isinstance(content, str) else self._result_text(content, f"{path}.content")
        prefix = _ERROR_PREFIX if block.is_error else ""
        return Message(role="tool", content=prefix + text, tool_call_id=block.tool_use_id)

    def _result_text(self, blocks: Sequence[Block], path: str) -> str:
        references = [block.tool_name or block.name or "" for block in blocks if block.type == "tool_reference"]
        texts = [
            _result_block_text(block, f"{path}[{idx}]")
            for idx, block in enumerate(blocks)
            if block.type != "tool_reference"
        ]
        return "".join([*texts, self._describe(references) if references else ""])

    def _describe(self, names: Sequence[str]) -> str:
        loaded = self._result.loaded
        lines: list[str] = []
        for name in names:
            lines.append(self._tools.describe(name, is_first=name not in loaded))
            loaded[name] = None
        return "\n".join(["<tools>", *lines, "</tools>"])


def _is_beginning(message: Message) -> bool:
    """Whether an answer can go on with this message; one that was cut off in its calls is only history."""
    return bool(message.content) and message.reasoning is None and not message.tool_calls


def _blocks(content: Content | None) -> Sequence[Block]:
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    return content or []


def _system_text(content: Content, path: str) -> str:
    texts: list[str] = []
    for idx, block in enumerate(_blocks(content)):
        if block.type != "text":
            raise refuse(f"{path}[{idx}].type", block.type, "text")
        texts.append(_without_preamble(_text_of(block, f"{path}[{idx}]")))
    return "".join(texts)


def _without_preamble(text: str) -> str:
    preamble = _PREAMBLE.match(text)
    return text[preamble.end() :] if preamble is not None else text


def _user_text(block: Block, path: str) -> str:
    if _is_left_out(block):
        return ""
    text = _readable_text(block, path)
    if text is None:
        raise refuse(f"{path}.type", block.type, _READABLE)
    return text


def _result_block_text(block: Block, path: str) -> str:
    text = _readable_text(block, path)
    return f"[{block.type}: this model reads text only]" if text is None else text


def _readable_text(block: Block, path: str) -> str | None:
    """The text of a block that has one."""
    match block.type:
        case "text":
            return _text_of(block, path)
        case "document":
            return _document_text(block, path)
        case "search_result":
            return _titled(block, _plain_text(convert_field({"content": block.content}, NestedContent, path), path))
        case _:
            return None


def _document_text(block: Block, path: str) -> str | None:
    source = convert_field(block.source, Source, f"{path}.source")
    match source.type:
        case "text" if source.data is not None:
            return _titled(block, source.data)
        case "content" if source.content is not None:
            return _titled(block, _plain_text(NestedContent(source.content), f"{path}.source"))
        case _:
            return None


def _plain_text(nested: NestedContent, path: str) -> str:
    """The texts in a document or search result; what is no text there is not looked into."""
    return "".join(
        _text_of(block, f"{path}.content[{idx}]") if block.type == "text" else f"[{block.type}]"
        for idx, block in enumerate(_blocks(nested.content))
    )


def _titled(block: Block, text: str) -> str:
    return f"{block.title}\n{text}" if block.title else text


def _text_of(block: Block, path: str) -> str:
    if block.text is None:
        raise refuse(f"{path}.text", None, "a string")
    return block.text


def _is_left_out(block: Block) -> bool:
    """What Anthropic's servers did for an earlier answer: its words are in that answer's text."""
    return block.type in _LEFT_OUT or (block.type.endswith("_tool_result") and block.type != "tool_result")
