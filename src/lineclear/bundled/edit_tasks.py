"""Context-copying edit tasks: chats whose answers are fully determined by their prompts.

A task shows a random file and asks for an edit, a value or a tool call. Nearly every token of the answer has to be
copied from the prompt, so an answer that is not exact shows damage to the prompt's KV cache. Training, `lineclear eval`
and the load tests all draw from here. Pure Python; the same arguments give the same task on every platform.

Kinds and their shares are in `KIND_SHARES`. Seeds below `HELD_OUT_FIRST_SEED` are for training; seeds from it on are
held out. A prompt shows the file indented, so that a line's start in the instruction differs from the one in the file;
answers are not indented. Files are built so that copying is well determined: no two names of a file share a word,
(almost) no run of three pieces is followed by two different pieces, nor a word with the mark after it, and every line
ends with a new name. An edit is shown as its lines read afterwards, with a neighbour on either side.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

KIND_SHARES: dict[str, float] = {
    "rename": 0.25,
    "insert": 0.20,
    "delete": 0.17,
    "reorder": 0.13,
    "tool_write": 0.12,
    "lookup": 0.07,
    "tool_read": 0.06,
}
"""Kind of task -> its share when `generate` picks the kind (out of the sum of all shares)."""

WHOLE_FILE_KINDS = frozenset({"rename", "insert", "delete", "reorder", "tool_write"})
HELD_OUT_FIRST_SEED = 1 << 40
MIN_TARGET_TOKENS = 150
MAX_TARGET_TOKENS = 4000

WORDS: tuple[str, ...] = tuple(
    """
    name value file path data type list object result string error code filename context format method message option
    source time command node function header info start base number check index prefix line parser address test root
    state buffer flags server output socket item level token count user host protocol offset group parent match stream
    handler action process directory argument package request help stack event build url target cache frame main tag
    length case input port doc property copy part member pattern entry element lock child module warning range callback
    master mock charset library section field register widget transport future content config date domain system
    instance position logger task release body loader archive global parameter dispatch stop sequence link cookie
    factory chunk search example script reader pipe screen record signal binary policy locale table filter status
    container shared dest variable simple tree client wrapper side slot quote trace scheme mapping alias window limit
    comment usage internal document writer manager point digit queue suffix selector payload owner interface origin
    separator dummy memo full registry space style force second display boundary work previous iterator operation
    external literal initial store family matches image version compare idx word details actual canvas label program
    handshake head fallback column letter decimal generator metadata hook reference static block thread fork public font
    mark report many frozen random angle regular caller mtime visit height shape category stats feature browser template
    query sentinel remainder operator heap condition cases weakref raises small generic auto filters frames messages
    exact best high blocking opener prog decoder extended heading machine patch post specify final regex location move
    timer depth remote view bar mask digest control nothing site lang lists platform entity soon triple prompt weekday
    fixed abstract helper step left take speed grid language shell args other key len default sys init new call
    isinstance will can msg text size bytes int encoding obj add mode cls dir use end used dict arg close only join
    print must options exc loop when has spec tuple pos have first should current exception repr values names open one
    func errors any parse kwargs timeout create handle given may items next headers sock called run find debug was last
    arguments split then specified compile methods types empty extra after log using objects found make response parts
    encode before max map cmd turtle attribute strings local modules out opt indent warnings non returned val remove
    like width than dirs more closed same keys decode returns connection there done attrs does flag exit load also order
    long ssl defaults namespace convert attr include sign params environ float two instead don where super year integer
    support addr ignore already warn compiler expected attributes fields here num they skip some need optional wait each
    standard been exp cannot old pop update clear send param either sep see available fut opts ext lower single defined
    strip escape globals enum characters character events pid invalid hash just passed because paths install dictionary
    without exists datetime abc distutils iter named callable want err functions classes raw keyword safe calls running
    allow encoded month dst ascii shutdown commands bit until stat day vars email sub utf proto contains special waiter
    chars always following missing mod information env select between them util raised byte strict otherwise org top
    created extension right since most conn reading zero collections executable html tests these total form short
    original title exceptions specific both signature subprocess setup seek slots struct children such supported pickle
    possible min added curses diff zip would logging verbose push seq common valid tell color rest pack proxy reset
    ensure resource back reduce now char cur win cancel exist builtin seconds compress fix way over bits show pair temp
    fill dump enter complete bound contain written sent row active put present wrap dot ready real descriptor configure
    built low spawn sure follow auth round per week under place normal off down fail array app thing less leading starts
    implement very own let red able arch turn bug become mail ends fall direct represent ending net come remain stem
    proper multiple star late
    """.split()  # noqa: SIM905
)
_RENAMED = frozenset(WORDS)
_SYLLABLES = (
    "ba",
    "co",
    "du",
    "fi",
    "ga",
    "lo",
    "mi",
    "nu",
    "pe",
    "ra",
    "so",
    "ti",
    "vu",
    "we",
    "za",
    "or",
    "en",
    "al",
)
_PIECE = re.compile(
    r"```|"
    r"\n[ \t]*| (?:[-+*/%<>=!&|]=|\*\*|//|->|[-+*/%<>=&|@]) |[,:] |[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[ \t]+|[^ \t\n]"
)
_RUN_LEN = 3
_MAX_TRIES = 12


@dataclass(frozen=True)
class EditTask:
    """One conversation and its only right answer.

    `answer_text` is the assistant turn as the model writes it after the generation prompt, tool-call markup included,
    without the end token; `answer_message` is the same turn as an OpenAI message.
    """

    kind: str
    seed: int
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    answer_text: str
    answer_message: Message


@dataclass(frozen=True)
class _Edit:
    """An instruction about a file and what it asks for."""

    instruction: str
    result: list[str]


@dataclass
class _Names:
    """Hands out names no two of which share a word."""

    rng: random.Random
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = list(WORDS)
        self.rng.shuffle(self.words)

    def word(self) -> str:
        """A word not handed out before; made of syllables once the list is used up."""
        return self.words.pop() if self.words else self.coined()

    def coined(self) -> str:
        """A made-up word, new with near certainty."""
        return "".join(self.rng.choice(_SYLLABLES) for _ in range(4))

    def fresh(self) -> str:
        """A new identifier: a word, two words, or a word and a digit."""
        roll = self.rng.random()
        if roll < 0.62:
            return self.word()
        return f"{self.word()}_{self.word()}" if roll < 0.88 else f"{self.word()}{self.rng.randrange(10)}"


def generate(seed: int, *, kind: str | None = None, target_tokens: int | None = None) -> EditTask:
    """Make the task of `seed`.

    `target_tokens` is the wished length of the whole row, prompt and answer (mostly met within 15 %); without it a
    length between 150 and 2,000 is drawn. `kind` fixes the kind instead of drawing it by share.
    """
    rng = random.Random(f"lineclear-edit-{seed}-{kind}-{target_tokens}")  # noqa: S311 (reproducible, not secret)
    kind = kind or rng.choices(list(KIND_SHARES), weights=list(KIND_SHARES.values()))[0]
    if kind not in _BUILDERS:
        raise ValueError(f"kind: {kind!r} is not one of {sorted(_BUILDERS)}")
    target = target_tokens or int(MIN_TARGET_TOKENS * (2000 / MIN_TARGET_TOKENS) ** rng.random())
    if not MIN_TARGET_TOKENS <= target <= MAX_TARGET_TOKENS:
        raise ValueError(f"target_tokens: {target} is not in [{MIN_TARGET_TOKENS}, {MAX_TARGET_TOKENS}]")
    return _BUILDERS[kind](rng, kind, seed, target)


def check(task: EditTask, output: str | Mapping[str, Any]) -> bool:
    """Whether `output` is exactly the task's answer.

    `output` is the model's text (tool-call markup included; surrounding blanks are ignored) or an OpenAI assistant
    message.
    """
    if isinstance(output, str):
        return output.strip() == task.answer_text.strip()
    if _calls(output) or _calls(task.answer_message):
        return _calls(output) == _calls(task.answer_message)
    return (output.get("content") or "").strip() == task.answer_text.strip()


def approximate_num_tokens(text: str) -> int:
    """Number of pre-tokenizer pieces of `text`: within a few per cent of its token count for generated files."""
    return len(_PIECE.findall(text))


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        calls.append((call["function"]["name"], json.loads(arguments) if isinstance(arguments, str) else arguments))
    return calls


# Files


def _make_file(rng: random.Random, names: _Names, num_tokens: int) -> list[str]:
    """Lines of a random file of about `num_tokens` tokens, at least six lines."""
    next_line = rng.choice((_python_lines, _python_lines, _config_lines, _yaml_lines))(rng, names)
    lines: list[str] = []
    runs: dict[tuple[str, ...], str] = {}
    tail: tuple[str, ...] = ("\n",) * _RUN_LEN
    total = 0
    while total < num_tokens or len(lines) < 6:
        line = next_line()
        pieces = (*tail, *_PIECE.findall("\n" + line))
        tries = 1
        while tries < _MAX_TRIES and not _agrees(runs, pieces):
            line = next_line()
            pieces = (*tail, *_PIECE.findall("\n" + line))
            tries += 1
        lines.append(line)
        runs.update(_followers(pieces))
        tail = pieces[-_RUN_LEN:]
        total += len(pieces) - _RUN_LEN
    return lines


def _followers(pieces: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every run of `_RUN_LEN` pieces, and every word with the mark after it, with the piece that follows."""
    for idx in range(len(pieces) - _RUN_LEN):
        run, follower = pieces[idx : idx + _RUN_LEN], pieces[idx + _RUN_LEN]
        yield run, follower
        if run[-2].isalpha() and not run[-1].isalnum() and not run[-1].isspace():
            yield run[-2:], follower


def _agrees(runs: dict[tuple[str, ...], str], pieces: tuple[str, ...]) -> bool:
    """Whether no run in `pieces` is followed by something else than before."""
    return all(runs.get(run, piece) == piece for run, piece in _followers(pieces))


def _python_lines(rng: random.Random, names: _Names) -> Callable[[], str]:
    """A source of lines of marked groups of Python-like statements."""
    known = [names.fresh() for _ in range(3)]
    left = 0

    def old() -> str:
        return rng.choice(known[-12:-1])

    def new() -> str:
        known.append(names.fresh())
        return known[-1]

    def next_line() -> str:
        nonlocal left
        if left == 0:
            left = rng.randint(3, 7)
            return f"@{new()}"
        left -= 1
        forms = (
            lambda: f"{new()} = {old()} + {new()}",
            lambda: f"{new()} = {old()}.{new()}",
            lambda: f"{new()} = {old()}, {new()}",
            lambda: f"{new()} = {new()} / {new()}",
            lambda: f"{new()} += {old()}, {new()}",
            lambda: f"{old()}.{new()} = {new()}",
        )
        return rng.choice(forms)()

    return next_line


def _config_lines(rng: random.Random, names: _Names) -> Callable[[], str]:
    """A source of lines of an INI-like file with bare section names."""
    left = 0

    def next_line() -> str:
        nonlocal left
        if left == 0:
            left = rng.randint(3, 8)
            return f"{names.fresh()}"
        left -= 1
        return f"{names.fresh()} = {_value(rng, names)}"

    return next_line


def _yaml_lines(rng: random.Random, names: _Names) -> Callable[[], str]:
    """A source of lines of marked groups of YAML-like settings."""
    left = 0

    def next_line() -> str:
        nonlocal left
        if left == 0:
            left = rng.randint(2, 6)
            return f"#{names.fresh()}"
        left -= 1
        return f"{names.fresh()}: {_value(rng, names)}"

    return next_line


def _value(rng: random.Random, names: _Names) -> str:
    roll = rng.randrange(5)
    if roll == 0:
        return f"{names.fresh()} {names.word()}"
    if roll == 1:
        return f"/{names.fresh()}/{names.fresh()}"
    if roll == 2:
        return f"{names.fresh()}.{names.word()}"
    if roll == 3:
        return f"{names.word()}, {names.fresh()}"
    return names.fresh()


# Edits. Each returns the instruction and the lines after the edit.


def _rename(rng: random.Random, names: _Names, lines: list[str]) -> _Edit:
    text = "\n".join(lines)
    counts: dict[str, int] = {}
    for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text):
        counts[name] = counts.get(name, 0) + 1
    eligible = [name for name in counts if name in _RENAMED]
    twice = [name for name in eligible if counts[name] == 2]
    old = rng.choice(twice or eligible)
    new = names.word()
    result = re.sub(rf"\b{old}\b", new, text).split("\n")
    changed = [place for place, line in enumerate(lines) if line != result[place]]
    what = rng.choice(("Rename", "Replace the name", "Change"))
    return _Edit(_becomes(rng, f"{what} {old} -> {new}", *_parts(result, changed)), result)


def _insert(rng: random.Random, names: _Names, lines: list[str]) -> _Edit:
    place = rng.randrange(1, len(lines) - 1)
    form = rng.choice(("{0} = {1} + {2}", "{0}.{1} = {2}", "{0} = {1}, {2}"))
    new = form.format(names.fresh(), names.fresh(), names.fresh())
    result = [*lines[:place], new, *lines[place:]]
    return _Edit(_becomes(rng, "Insert a line", result[place - 1 : place + 2]), result)


def _delete(rng: random.Random, _names: _Names, lines: list[str]) -> _Edit:
    start = rng.randrange(1, len(lines) - 2)
    end = min(start + rng.choice((1, 1, 1, 2, 3)), len(lines) - 1)
    what = "Delete a line" if end == start + 1 else f"Delete {end - start} lines"
    result = [*lines[:start], *lines[end:]]
    return _Edit(_becomes(rng, what, result[start - 1 : start + 1]), result)


def _reorder(rng: random.Random, _names: _Names, lines: list[str]) -> _Edit:
    place = rng.randrange(1, len(lines) - 2)
    result = list(lines)
    result[place : place + 2] = reversed(result[place : place + 2])
    return _Edit(_becomes(rng, "Swap two lines", result[place - 1 : place + 3]), result)


def _parts(lines: Sequence[str], places: Sequence[int]) -> list[Sequence[str]]:
    """The lines at `places`, each with its neighbours; parts that touch or overlap are one."""
    spans: list[tuple[int, int]] = []
    for place in places:
        start, end = max(place - 1, 0), min(place + 2, len(lines))
        if spans and start <= spans[-1][1]:
            start = spans.pop()[0]
        spans.append((start, end))
    return [lines[start:end] for start, end in spans]


def _becomes(rng: random.Random, what: str, *parts: Sequence[str]) -> str:
    """The instruction that shows how parts of the file read after the edit."""
    how = rng.choice(("so that this part reads", "so that this part becomes", "to get"))
    return f"{what} {how}:\n```\n" + "\n".join("\n".join(part) + " ..." for part in parts) + "\n```"


_EDITS: dict[str, Callable[[random.Random, _Names, list[str]], _Edit]] = {
    "rename": _rename,
    "insert": _insert,
    "delete": _delete,
    "reorder": _reorder,
}


# Conversations


def _build_edit(rng: random.Random, kind: str, seed: int, target: int) -> EditTask:
    names = _Names(rng)
    lines = _make_file(rng, names, (target - 70) // 2)
    edit = _EDITS[kind](rng, names, lines)
    prompt = f"{_shown(_path(rng, names), lines)}\n{edit.instruction}\nReply with the whole file."
    answer = _fenced(edit.result)
    messages = [*_system(rng), {"role": "user", "content": prompt}]
    return EditTask(kind, seed, messages, None, answer, {"role": "assistant", "content": answer})


def _build_tool_write(rng: random.Random, kind: str, seed: int, target: int) -> EditTask:
    names = _Names(rng)
    lines = _make_file(rng, names, max((target - 270) // 2, 30))
    edit = _EDITS[rng.choice(list(_EDITS))](rng, names, lines)
    path = _path(rng, names)
    prompt = f"{_shown(path, lines)}\n{edit.instruction}\nWrite the whole file to {path} with write_file."
    content = "\n".join(edit.result) + "\n"
    return _tool_task(rng, kind, seed, prompt, "write_file", {"path": path, "content": content})


def _build_tool_read(rng: random.Random, kind: str, seed: int, target: int) -> EditTask:
    names = _Names(rng)
    lines = _make_file(rng, names, max(target - 290, 30))
    path, number = _path(rng, names), str(rng.randrange(1, 100))
    prompt = f"{_shown(_path(rng, names), lines)}\nRead {path} from line {number} with read_file."
    return _tool_task(rng, kind, seed, prompt, "read_file", {"path": path, "line": number})


def _build_lookup(rng: random.Random, kind: str, seed: int, target: int) -> EditTask:
    names = _Names(rng)
    settings = [f"{names.fresh()} = {_value(rng, names)}" for _ in range(max(target // 60, 2))]
    lines = _make_file(rng, names, target - 60)
    places = rng.sample(range(len(lines)), min(len(settings), len(lines)))
    for place, setting in zip(places, settings, strict=False):
        lines[place] = setting
    line = lines[places[0]]
    asked = line.split(" = ")[0]
    question = rng.choice((f"Give the line of {asked}.", f"Look up {asked}.", f"Show the setting {asked}."))
    messages = [*_system(rng), {"role": "user", "content": f"{_shown(_path(rng, names), lines)}\n{question}"}]
    return EditTask(kind, seed, messages, None, line, {"role": "assistant", "content": line})


_BUILDERS: dict[str, Callable[[random.Random, str, int, int], EditTask]] = {
    **dict.fromkeys(_EDITS, _build_edit),
    "tool_write": _build_tool_write,
    "tool_read": _build_tool_read,
    "lookup": _build_lookup,
}


def _tool_task(rng: random.Random, kind: str, seed: int, prompt: str, name: str, arguments: dict[str, str]) -> EditTask:
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages = [*_system(rng), {"role": "user", "content": prompt}]
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return EditTask(kind, seed, messages, _tools(), f"<tool_call>{name}{pairs}</tool_call>", answer)


def _tools() -> list[dict[str, Any]]:
    return [_tool("read_file", "Read a file.", "path", "line"), _tool("write_file", "Write a file.", "path", "content")]


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _system(rng: random.Random) -> list[Message]:
    text = rng.choice((None, None, "You edit files.", "You are a careful editor.", "Answer exactly."))
    return [] if text is None else [{"role": "system", "content": text}]


def _path(rng: random.Random, names: _Names) -> str:
    return f"{rng.choice(('src', 'lib', 'etc', names.word()))}/{names.fresh()}.{rng.choice(('py', 'cfg', 'txt'))}"


def _shown(path: str, lines: Sequence[str]) -> str:
    return f"{path}:\n{_fenced(['    ' + line for line in lines])}"


def _fenced(lines: Sequence[str]) -> str:
    return "```\n" + "\n".join(lines) + "\n```"
