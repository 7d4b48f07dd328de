"""Input items of OpenAI's Responses API, brought into the shape of `conversation`.

| sent | understood as |
|---|---|
| a string | a message of the user |
| an item without `type` | a message |
| `message` of role `developer` | a system message where it stands |
| `reasoning` | what the assistant thought before the next message or call; its summary, where it has no text |
| `function_call`, `custom_tool_call` | a call; arguments that are no object become one |
| `function_call_output`, `custom_tool_call_output` | a tool's message; what is no text in it is noted |
| what tools of OpenAI's servers did | nothing |

What the model could not be shown is refused: images and files that the user sent, references to stored items.
"""

from collections.abc import Sequence

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.codecs.chat_messages import ContentPart, read_arguments, read_content, read_tool_content
from lineclear.gateway.codecs.responses_body import Item, NestedContent
from lineclear.gateway.codecs.responses_tools import INPUT, ResponseTools
from lineclear.gateway.codecs.turns import Turns
from lineclear.gateway.conversation import Message, PastToolCall, Role
from lineclear.gateway.errors import refuse

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_OF_SERVERS = frozenset(
    {
        "web_search_call", "file_search_call", "computer_call", "computer_call_output", "image_generation_call",
        "code_interpreter_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call",
        "tool_search_call", "tool_search_output",
    }
)  # fmt: skip

_TYPES = "message, reasoning, function_call, function_call_output, custom_tool_call, custom_tool_call_output"


def read_input(items: str | list[Item], tools: ResponseTools) -> tuple[Message, ...]:
    """The messages of a conversation.

    Raises:
        InvalidRequestError: An item cannot be shown to the model.
    """
    if isinstance(items, str):
        return (Message(role="user", content=items),)
    turns = Turns()
    for idx, item in enumerate(items):
        _read_item(item, f"input[{idx}]", turns, tools)
    return turns.messages()


def _read_item(item: Item, path: str, turns: Turns, tools: ResponseTools) -> None:
    match item.type:
        case None | "message":
            _read_message(item, path, turns)
        case "reasoning":
            turns.add_reasoning(_reasoning_text(item, path))
        case "function_call":
            turns.add_call(_read_call(item, path, tools, read_arguments(item.arguments)))
        case "custom_tool_call":
            turns.add_call(_read_call(item, path, tools, {INPUT: item.input if isinstance(item.input, str) else ""}))
        case "function_call_output" | "custom_tool_call_output":
            output = convert_field({"output": item.output}, NestedContent, path).output
            text = read_tool_content(output, f"{path}.output")
            turns.add(Message(role="tool", content=text, tool_call_id=item.call_id))
        case "item_reference":
            raise refuse(f"{path}.type", item.type, f"{_TYPES}: nothing is stored that could be referred to")
        case _ if item.type in _OF_SERVERS:
            pass
        case _:
            raise refuse(f"{path}.type", item.type, _TYPES)


def _read_message(item: Item, path: str, turns: Turns) -> None:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise refuse(f"{path}.role", item.role, "one of " + ", ".join(_ROLES))
    text = read_content(convert_field({"content": item.content}, NestedContent, path).content, f"{path}.content")
    if role == "assistant":
        turns.add_whole_text(text)
    else:
        turns.add(Message(role=role, content=text))


def _reasoning_text(item: Item, path: str) -> str:
    content = convert_field({"content": item.content}, NestedContent, path).content
    if isinstance(content, str):
        return content
    parts: Sequence[str | ContentPart] = content or item.summary or []
    return "".join(part if isinstance(part, str) else part.text or "" for part in parts)


def _read_call(item: Item, path: str, tools: ResponseTools, arguments: dict[str, object]) -> PastToolCall:
    if item.name is None:
        raise refuse(f"{path}.name", None, "the name of the tool")
    return PastToolCall(item.call_id or "", tools.shown_name(item.name, item.namespace), arguments)
