"""Which session a request belongs to, as far as its client says: the key by which its requests stay together.

| said in | by |
|---|---|
| a header of the operator's choice (`--session-header`) | anybody |
| `x-claude-code-session-id`, with `x-claude-code-agent-id`: subagents have prompts of their own | Claude Code |
| `x-session-affinity`, `x-session-id`, `session-id`, `session_id`, `thread-id` | OpenCode, Codex, others |
| `prompt_cache_key` of the body | Codex, OpenAI's SDK |
| `metadata.user_id` of the body, at `/v1/messages` | Claude Code, Anthropic's SDK |

The first that is there counts. A key is a digest: what clients call their sessions is kept nowhere. It decides where a
request is computed, never what is answered.
"""

from collections.abc import Sequence
from hashlib import blake2b

from starlette.datastructures import Headers

_AGENT_HEADER = "x-claude-code-agent-id"
_HEADERS = (
    "x-claude-code-session-id",
    "x-session-affinity",
    "x-session-id",
    "session-id",
    "session_id",
    "thread-id",
)


def session_of_headers(headers: Headers, own_headers: Sequence[str] = ()) -> str:
    """The key that the headers say; empty if they say none."""
    for name in (*own_headers, *_HEADERS):
        if value := headers.get(name, ""):
            return session_key(value, headers.get(_AGENT_HEADER, ""))
    return ""


def session_of_body(*said: object) -> str:
    """The key that fields of a body say: the first that is a text; empty if none is."""
    return session_key(next((each for each in said if isinstance(each, str) and each), ""))


def session_key(*names: str) -> str:
    """The key of a session by what its client calls it; empty if all names are."""
    if not any(names):
        return ""
    return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
