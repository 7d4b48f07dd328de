"""Reading tensors of a checkpoint by name: one safetensors file, or shards with an index.

Block-scaled fp8 weights (`name` with `name_scale_inv`) are multiplied out as they are read.

Invariant: every tensor on disk is taken once, or refused by name.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lineclear.base.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SCALE_SUFFIX = "_scale_inv"
OnTensor = Callable[[int, int], None]
"""Hears of a tensor that was read: how many were by now, of how many."""

PLAIN_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Checkpoint:
    """The tensors of one model directory.

    Args:
        directory: holds the files.
        fp8_block_shape: rows and columns that share a scale; None where the checkpoint is not quantized.
        on_tensor: called after each tensor that is read.
    """

    def __init__(
        self, directory: Path, fp8_block_shape: tuple[int, int] | None, on_tensor: OnTensor | None = None
    ) -> None:
        self._on_tensor = on_tensor
        self._fp8_block_shape = fp8_block_shape
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, Any] = {}
        self._left: set[str] = set()
        for file_name, names in _names_by_file(directory).items():
            self._open(directory / file_name, names)

    def has(self, name: str) -> bool:
        """Whether the tensor is on disk."""
        return name in self._file_of

    def take(self, name: str, *shape: int) -> Tensor:
        """Read a tensor in its own type, fp8 ones in fp32.

        Raises: CheckpointError naming a tensor that is missing, of another shape or type, or not finite.
        """
        tensor = self._read_shaped(name, shape)
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(name, "values that are not finite", "finite numbers")
        return tensor

    def _read_shaped(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._read(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(name, f"shape {list(tensor.shape)}", f"shape {list(shape)}")
        if tensor.dtype == torch.float8_e4m3fn:
            return self._scaled(name, tensor)
        if tensor.dtype not in PLAIN_TYPES:
            raise CheckpointError(name, str(tensor.dtype), "float32, bfloat16, float16 or block-scaled float8_e4m3fn")
        return tensor

    def refuse_left(self) -> None:
        """Raises: CheckpointError naming a tensor that was never taken."""
        if self._left:
            name = min(self._left)
            raise CheckpointError(name, "present", f"absent: no part of the model ({len(self._left)} such tensors)")

    def _open(self, path: Path, names: set[str] | None) -> None:
        try:
            file = cast("Any", safe_open(str(path), framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(path.name, str(error), "a readable safetensors file") from error
        present = set(cast("list[str]", file.keys()))
        for name in sorted((names or present) ^ present):
            raise CheckpointError(name, f"in only one of {INDEX_FILE} and {path.name}", "in both")
        for name in present:
            if name in self._file_of:
                raise CheckpointError(name, f"in {path.name} and another file", "in one file")
            self._file_of[name] = file
        self._left |= present

    def _read(self, name: str) -> Tensor:
        file = self._file_of.get(name)
        if file is None:
            raise CheckpointError(name, "missing", "a tensor of this name in the checkpoint")
        tensor = cast("Tensor", file.get_tensor(name))
        self._left.discard(name)
        if self._on_tensor is not None:
            num_all = len(self._file_of)
            self._on_tensor(num_all - len(self._left), num_all)
        return tensor

    def _scaled(self, name: str, weight: Tensor) -> Tensor:
        if self._fp8_block_shape is None:
            raise CheckpointError(name, "float8_e4m3fn", "a quantization_config in config.json that explains it")
        scale_name = name + SCALE_SUFFIX
        scales = self._read(scale_name)
        expected = [-(-size // block) for size, block in zip(weight.shape, self._fp8_block_shape, strict=True)]
        if list(scales.shape) != expected:
            raise CheckpointError(scale_name, f"shape {list(scales.shape)}", f"shape {expected}")
        return multiply_out(weight, scales, self._fp8_block_shape)


def multiply_out(weight: Tensor, scales: Tensor, block_shape: tuple[int, int]) -> Tensor:
    """Scale each block of a weight.

    Shapes: weight: [rows, columns]; scales: blocks of it; returns weight's shape, fp32.
    """
    rows, columns = weight.shape
    wide = scales.float().repeat_interleave(block_shape[0], 0)[:rows].repeat_interleave(block_shape[1], 1)[:, :columns]
    return weight.float() * wide


def _names_by_file(directory: Path) -> Mapping[str, set[str] | None]:
    """Tensor names by file; None for all that a file holds."""
    index_path = directory / INDEX_FILE
    if not index_path.exists():
        return {SINGLE_FILE: None}
    try:
        weight_map = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(INDEX_FILE, str(error), "a JSON object with a weight_map") from error
    names_by_file: defaultdict[str, set[str] | None] = defaultdict(set)
    for name, file_name in cast("dict[str, str]", dict(weight_map)).items():
        cast("set[str]", names_by_file[file_name]).add(name)
    return names_by_file
