from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from lineclear.base.errors import ConfigError
from lineclear.config.components import EngineConfig, GatewayConfig, GuardConfig, LinkConfig, ModelSource, ServeConfig
from lineclear.config.definition import Definition, definitions_of
from lineclear.config.option import Option, Pattern, Range
from lineclear.config.resolve import COMPONENTS, RESERVED_VARIABLES, definitions_by_name


def definition(name: str) -> Definition:
    return definitions_by_name()[name]


def test_names_are_unique_over_all_components() -> None:
    names = [each.name for component in COMPONENTS.values() for each in definitions_of(component)]
    assert len(names) == len(set(names))


def test_every_component_of_the_service_is_known() -> None:
    assert [field.name for field in fields(ServeConfig)] == list(COMPONENTS)
    assert [field.type for field in fields(ServeConfig)] == list(COMPONENTS.values())


def test_defaults_are_allowed_values() -> None:
    for each in definitions_by_name().values():
        assert each.check(each.default) == each.default


def test_no_option_takes_a_reserved_variable() -> None:
    assert not RESERVED_VARIABLES & {each.variable for each in definitions_by_name().values()}


def test_flag_and_variable_are_the_name() -> None:
    assert definition("max_total_tokens").flag == "--max-total-tokens"
    assert definition("max_total_tokens").variable == "LINECLEAR_MAX_TOTAL_TOKENS"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("port", "65535", 65_535),
        ("max_total_tokens", "auto", None),
        ("max_total_tokens", "4096", 4096),
        ("drain_seconds", "1.5", 1.5),
        ("drain_seconds", "2", 2.0),
        ("batch_invariant", "Yes", True),
        ("batch_invariant", "off", False),
        ("dtype", "bf16", "bf16"),
        ("device", "cuda:3", "cuda:3"),
        ("api_key", "a, b", ("a", "b")),
        ("api_key", "", ()),
        ("served_model_name", "auto", None),
        ("guard", "fail", "fail"),
        ("guard_detector", "seed", "seed"),
        ("guard_baselines", "auto", None),
        ("guard_baselines", "b.json", "b.json"),
    ],
)
def test_text_is_read(name: str, text: str, value: object) -> None:
    parsed = definition(name).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "-1"),
        ("port", "65536"),
        ("port", "eighty"),
        ("port", "1.0"),
        ("port", "auto"),
        ("port", ""),
        ("drain_seconds", "nan"),
        ("drain_seconds", "inf"),
        ("batch_invariant", "maybe"),
        ("dtype", "fp16"),
        ("device", "cuda:"),
        ("device", "cpu\n"),
        ("served_model_name", "two words"),
    ],
)
def test_bad_text_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        definition(name).parse(text)
    assert caught.value.field == name
    assert str(caught.value.value) == text
    assert caught.value.allowed == definition(name).allowed


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", True), ("port", "80"), ("port", 80.0), ("batch_invariant", 1), ("dtype", None), ("api_key", "text")],
)
def test_typed_values_are_not_converted(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        definition(name).check(value)


def test_whole_numbers_are_numbers() -> None:
    checked = definition("drain_seconds").check(3)
    assert type(checked) is float


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        definition("api_key").parse("pass word")
    assert "pass word" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("port", "a whole number, 0 to 65535"),
        ("max_running", "a whole number, 1 to 4096"),
        ("max_total_tokens", "a whole number, at least 1, or auto"),
        ("batch_invariant", "true or false"),
        ("dtype", "one of fp32, bf16"),
        ("device", "cpu, cuda or cuda:N"),
    ],
)
def test_allowed_values_in_words(name: str, allowed: str) -> None:
    assert definition(name).allowed == allowed


def test_ranges_are_closed() -> None:
    assert [Range(1, 3).contains(value) for value in (0, 1, 3, 4)] == [False, True, True, False]
    assert str(Range(high=3)) == "at most 3"
    assert Range(high=3).contains(-5)


def test_patterns_match_from_end_to_end() -> None:
    assert Pattern("a+", "").contains("aa")
    assert not Pattern("a+", "").contains("aab")


def test_components_check_what_they_are_built_with() -> None:
    with pytest.raises(ConfigError, match="block_size: got 0"):
        EngineConfig(block_size=0)
    with pytest.raises(ConfigError, match="model"):
        ModelSource(model="")
    with pytest.raises(ConfigError, match="port"):
        GatewayConfig(port=70_000)


@pytest.mark.parametrize(
    ("component", "values", "field"),
    [
        (EngineConfig, {"max_total_tokens": 15}, "max_total_tokens"),
        (EngineConfig, {"max_batch_tokens": 3}, "max_batch_tokens"),
        (LinkConfig, {"heartbeat_seconds": 40.0}, "peer_timeout_seconds"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(component: type, values: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        component(**values)
    assert caught.value.field == field


def test_the_guard_needs_drafts() -> None:
    with pytest.raises(ConfigError) as caught:
        ServeConfig(engine=EngineConfig(draft_tokens=0), guard=GuardConfig(guard="observe"))
    assert (caught.value.field, caught.value.value) == ("guard", "observe")
    ServeConfig(engine=EngineConfig(draft_tokens=0), guard=GuardConfig(guard="off"))


def test_a_guard_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="off, observe, retry, fail"):
        definition("guard").parse("maybe")
    with pytest.raises(ConfigError, match="seed, calibrated"):
        definition("guard_detector").parse("oracle")


def test_fields_that_just_agree_are_accepted() -> None:
    EngineConfig(max_total_tokens=16, max_batch_tokens=4, draft_tokens=3)
    LinkConfig(heartbeat_seconds=30.0)


def test_a_field_needs_an_option() -> None:
    @dataclass
    class Bare:
        size: int = 1

    with pytest.raises(TypeError, match="size"):
        definitions_of(Bare)


def test_a_field_needs_a_known_type() -> None:
    @dataclass
    class Odd:
        size: Annotated[bytes, Option("")] = b""

    with pytest.raises(TypeError, match="bytes"):
        definitions_of(Odd)
