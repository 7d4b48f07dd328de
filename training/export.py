"""Writes a trained state as a Hugging Face checkpoint.

    python -m training.export --state DIR/state.pt [--out DIR]

The tokenizer, the chat template and the model card already lie in the checkpoint directory; this adds config.json,
model.safetensors, generation_config.json and tokenizer_config.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lineclear.bundled import checkpoint_path
from training.net import Net, NetConfig, config_json
from training.rows import Codec

END_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")


def load_net(path: Path) -> Net:
    """The network in a `state.pt`."""
    state = torch.load(path, weights_only=False)
    net = Net(NetConfig(**state["config"]))
    net.load_state_dict(state["net"])
    return net.eval()


def export(net: Net, out: Path) -> None:
    """Write the checkpoint files of `net` into `out`."""
    codec = Codec(out)
    ids = {text: codec.tokenizer.token_to_id(text) for text in END_TOKENS}
    tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    end_ids = list(ids.values())
    token_ids = {"pad_token_id": ids["<|endoftext|>"], "eos_token_id": end_ids, "bos_token_id": None}
    _write(out / "config.json", {**config_json(net.config), **token_ids, "dtype": "float32"})
    generation = {"do_sample": False, "eos_token_id": end_ids, "pad_token_id": ids["<|endoftext|>"]}
    _write(out / "generation_config.json", generation)
    _write(out / "tokenizer_config.json", tokenizer_config(net.config.max_position_embeddings))


def tokenizer_config(max_len: int) -> dict[str, Any]:
    """The contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_len,
        "padding_side": "left",
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=checkpoint_path())
    options = parser.parse_args()
    export(load_net(options.state), options.out)


if __name__ == "__main__":
    main()
