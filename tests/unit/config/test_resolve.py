import tomllib
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.config.components import ServeConfig
from lineclear.config.render import render
from lineclear.config.resolve import ConfigFile, Origin, Source, definitions_by_name, read_config_file, resolve

FILE = ConfigFile("serve.toml", {"port": 1, "host": "file", "max_running": 7})


def test_nothing_given_is_the_defaults() -> None:
    resolved = resolve({}, None, {})
    assert resolved.config == ServeConfig()
    assert set(resolved.origins) == set(definitions_by_name())
    assert set(resolved.origins.values()) == {Origin(Source.DEFAULT)}


def test_flags_win_over_variables_over_the_file() -> None:
    environment = {"LINECLEAR_PORT": "2", "LINECLEAR_HOST": "variable"}
    resolved = resolve({"port": "3"}, FILE, environment)
    gateway = resolved.config.gateway
    assert (gateway.port, gateway.host, resolved.config.engine.max_running) == (3, "variable", 7)
    origins = [str(resolved.origins[name]) for name in ("port", "host", "max_running", "seed")]
    assert origins == ["flag --port", "variable LINECLEAR_HOST", "file serve.toml", "default"]


def test_a_stronger_source_can_take_a_value_back() -> None:
    file = ConfigFile("serve.toml", {"max_total_tokens": 4096})
    assert resolve({"max_total_tokens": "auto"}, file, {}).config.engine.max_total_tokens is None


def test_lists() -> None:
    assert resolve({"api_key": ["a,b", "c"]}, None, {}).config.gateway.api_key == ("a,b", "c")
    assert resolve({}, None, {"LINECLEAR_API_KEY": "a,b"}).config.gateway.api_key == ("a", "b")
    assert resolve({}, ConfigFile("f", {"api_key": ["a"]}), {}).config.gateway.api_key == ("a",)


def test_variables_of_others_and_reserved_ones_are_ignored() -> None:
    environment = {"PORT": "1", "LINECLEAR_DATA": "/data", "LINECLEAR_CONFIG": "serve.toml"}
    assert resolve({}, None, environment).config == ServeConfig()


@pytest.mark.parametrize(
    ("flags", "file", "environment", "origin"),
    [
        ({"port": "x"}, None, {}, "flag --port"),
        ({}, ConfigFile("serve.toml", {"port": "8000"}), {}, "file serve.toml"),
        ({}, None, {"LINECLEAR_PORT": "-1"}, "variable LINECLEAR_PORT"),
    ],
)
def test_a_bad_value_says_where_it_came_from(
    flags: dict[str, str | list[str]], file: ConfigFile | None, environment: dict[str, str], origin: str
) -> None:
    with pytest.raises(ConfigError, match=f"^port: got .*0 to 65535; it came from {origin}$"):
        resolve(flags, file, environment)


def test_a_contradiction_says_where_the_value_came_from() -> None:
    with pytest.raises(ConfigError, match=r"^max_total_tokens: .*block_size \(32\); it came from variable"):
        resolve({"block_size": "32"}, None, {"LINECLEAR_MAX_TOTAL_TOKENS": "31"})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("LINECLEAR_PROT", "LINECLEAR_PORT"),
        ("LINECLEAR_MAX_TOTAL_TOKEN", "LINECLEAR_MAX_TOTAL_TOKENS"),
        ("LINECLEAR_CONFIGG", "LINECLEAR_CONFIG"),
    ],
)
def test_unknown_variables_are_refused_with_the_variable_that_was_meant(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, None, {variable: "hunter2"})
    assert (
        str(caught.value) == f"variable: got '{variable}', allowed: the variable of an option (did you mean {meant}?)"
    )


@pytest.mark.parametrize("key", ["prot", "max-total-tokens", "max_total_token"])
def test_unknown_keys_are_refused_with_the_option_that_was_meant(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}.*did you mean (port|max_total_tokens)\?.*file serve.toml"):
        resolve({}, ConfigFile("serve.toml", {key: 1}), {})


def test_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"table: got 'engine', allowed: options outside of tables"):
        resolve({}, ConfigFile("serve.toml", {"engine": {"seed": 1}}), {})


def test_the_value_of_an_unknown_variable_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, None, {"LINECLEAR_APIKEY": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"zzz.*the name of an option; it came from file serve.toml"):
        resolve({}, ConfigFile("serve.toml", {"zzz": 1}), {})


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('host = "::1"\nport = 9\n')
    assert read_config_file(path) == ConfigFile(str(path), {"host": "::1", "port": 9})


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "serve.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config: got .*serve.toml"):
        read_config_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: got .*none.toml"):
        read_config_file(tmp_path / "none.toml")


def test_what_is_printed_resolves_to_the_same() -> None:
    first = resolve({"port": "9", "max_model_len": "100", "batch_invariant": "no", "model": 'a "b"'}, None, {})
    second = resolve({}, ConfigFile("printed", tomllib.loads(render(first))), {})
    assert second.config == first.config


def test_what_is_printed_names_the_origins() -> None:
    lines = render(resolve({"port": "9"}, None, {"LINECLEAR_SEED": "4"})).splitlines()
    assert any(line.split() == ["port", "=", "9", "#", "flag", "--port"] for line in lines)
    assert any(line.split() == ["seed", "=", "4", "#", "variable", "LINECLEAR_SEED"] for line in lines)
    assert any(line.split() == ["block_size", "=", "16", "#", "default"] for line in lines)


def test_secrets_are_not_printed() -> None:
    printed = render(resolve({"api_key": ["hunter2"]}, None, {}))
    assert "hunter2" not in printed
    assert "# api_key = (hidden)" in printed
