"""Reading a LoRA adapter from its directory, with every fault named before it is used.

An adapter directory is what Hugging Face's PEFT writes: `adapter_config.json` and
`adapter_model.safetensors`. The reading itself is vLLM's; here are the checks that belong to the
runner's Llama. Pickled weights (`adapter_model.bin`) are not read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

if TYPE_CHECKING:
    import torch
    from vllm.config.lora import LoRAConfig

    from ..llama_config import LlamaConfig

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_MODULE = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)")


class AdapterMatrices(NamedTuple):
    """What an adapter adds to one projection: x A^T B^T, scaled.

    Attributes:
        a: [rank, in_features].
        b: [out_features, rank], the adapter's scaling included.
    """

    a: torch.Tensor
    b: torch.Tensor


Adapter = dict[tuple[int, str], AdapterMatrices]
"""An adapter: its matrices by layer and projection, such as (0, "q_proj")."""


def get_projection_shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """Return (out_features, in_features) of the seven projections that an adapter may change."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows = config.num_attention_heads * config.head_dim
    kv_rows = config.num_key_value_heads * config.head_dim
    return {
        "q_proj": (q_rows, hidden),
        "k_proj": (kv_rows, hidden),
        "v_proj": (kv_rows, hidden),
        "o_proj": (hidden, q_rows),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def read_adapter(path: str | Path, config: LlamaConfig, lora_config: LoRAConfig) -> Adapter:
    """Read an adapter for a Llama of these dimensions.

    Raises:
        ValueError: the directory holds no adapter, or one that this model or these settings
            cannot serve; the message names the directory.
    """
    directory = Path(path)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise _refuse(directory, f"{name} is missing; give a directory that PEFT has saved")
    shapes = get_projection_shapes(config)
    try:
        peft = PEFTHelper.from_local_dir(str(directory), max_position_embeddings=None)
        peft.validate_legal(lora_config)
        model = LoRAModel.from_local_checkpoint(
            str(directory),
            set(shapes),
            peft,
            lora_model_id=1,
            device="cpu",
            dtype=lora_config.lora_dtype,
        )
    except Exception as error:  # whatever a broken file makes vLLM's or safetensors' readers raise
        fix = (
            "raise max_lora_rank"
            if "max_lora_rank" in str(error)
            else "use an adapter of the projections q, k, v, o, gate, up and down"
        )
        raise _refuse(directory, f"{error}; {fix}") from error
    adapter = {}
    for name, weights in model.loras.items():
        place = _MODULE.fullmatch(name)
        if place is None or int(place[1]) >= config.num_hidden_layers or place[2] not in shapes:
            raise _refuse(
                directory,
                f"{name!r} is no projection of this model, which has "
                f"{config.num_hidden_layers} layers; use an adapter made for it",
            )
        out_features, in_features = shapes[place[2]]
        found = [None if m is None else list(m.shape) for m in (weights.lora_a, weights.lora_b)]
        wanted = [[peft.r, in_features], [out_features, peft.r]]
        if found != wanted:
            raise _refuse(
                directory,
                f"the matrices A and B of {name!r} are {found}; this model needs {wanted}; use an "
                f"adapter made for it",
            )
        matrices = AdapterMatrices(weights.lora_a, weights.lora_b * weights.scaling)
        adapter[int(place[1]), place[2]] = matrices
    return adapter


def _refuse(directory: Path, why: str) -> ValueError:
    return ValueError(f"lora_path: {directory}: {why}")
