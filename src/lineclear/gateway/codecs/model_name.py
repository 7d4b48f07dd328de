"""The `model` field of every body."""

from lineclear.gateway.errors import NotFoundError
from lineclear.gateway.served_model import ServedModel


def check_model_name(name: str | None, model: ServedModel) -> None:
    """Refuse another model than the one that is served; without a name it is meant.

    Raises:
        NotFoundError: The model is not served.
    """
    if name is not None and name != model.name:
        raise NotFoundError(f"model: got {name!r}, served: {model.name}", "model", "model_not_found")
