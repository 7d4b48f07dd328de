import pytest

from lineclear.base.errors import (
    CheckpointError,
    ConfigError,
    InvariantError,
    LineclearError,
    PeerError,
    RequestError,
    UserError,
)


@pytest.mark.parametrize("kind", [ConfigError, CheckpointError, RequestError])
def test_a_users_mistake_names_field_value_and_what_is_allowed(kind: type[UserError]) -> None:
    error = kind("top_p", 1.5, "above 0, at most 1")
    assert str(error) == "top_p: got 1.5, allowed: above 0, at most 1"
    assert (error.field, error.value, error.allowed) == ("top_p", 1.5, "above 0, at most 1")
    assert isinstance(error, UserError)
    assert isinstance(error, LineclearError)
    assert isinstance(error, ValueError)


def test_a_huge_value_is_shown_in_short() -> None:
    assert len(str(RequestError("prompt", "x" * 10_000_000, "at most 5 tokens"))) < 300
    assert len(str(RequestError("prompt", list(range(1_000_000)), "at most 5 tokens"))) < 300


def test_a_request_error_carries_a_code_for_programs() -> None:
    assert RequestError("model", "x", "y").code == "invalid_value"
    assert RequestError("model", "x", "y", code="model_not_found").code == "model_not_found"


def test_handling_other_peoples_errors_does_not_hide_our_own() -> None:
    assert not issubclass(InvariantError, LineclearError)
    assert issubclass(InvariantError, AssertionError)
    assert issubclass(PeerError, LineclearError)
    assert not issubclass(PeerError, ValueError)
