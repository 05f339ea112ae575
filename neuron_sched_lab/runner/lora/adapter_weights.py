"""Serving several LoRA adapters in one batch.

An adapter adds  x A^T B^T  to a projection  x W^T,  where A and B are thin. Requests of one batch
may want different adapters, or none, but a graph has one fixed shape. So the A of all slots stand
below each other, the graph multiplies by all of them, and each token then keeps only the numbers
of its own slot:

    x [tokens, in]  ->  [tokens, slots, rank]  ->  all but the token's own slot set to 0
                    ->  [tokens, slots * rank]  ->  [tokens, out]

That is `max_loras` times the arithmetic of one adapter, and still little beside the projection.
Nothing is gathered, and nothing depends on which adapters are in the slots: no graph is compiled
when an adapter comes or goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from .adapter_files import AdapterMatrices, get_projection_shapes

if TYPE_CHECKING:
    from vllm.config.lora import LoRAConfig

    from ..llama_config import LlamaConfig

PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
"""The projections of a checkpoint that share a matrix in the runner's Llama."""


class AdapterWeights(nn.Module):
    """The A and B of every slot for one matrix of the model.

    Where the matrix holds several projections, such as q, k and v, each has ranks of its own: B is
    block-diagonal.

    Args:
        out_features: of the projections that share the matrix.
        in_features: of the matrix.
        num_slots: adapters that one batch may use.
        rank: the largest of an adapter.
    """

    def __init__(
        self, out_features: Sequence[int], in_features: int, num_slots: int, rank: int
    ) -> None:
        super().__init__()
        self.out_features, self.rank = list(out_features), rank
        width = len(out_features) * rank
        a = torch.zeros(num_slots, width, in_features)
        b = torch.zeros(num_slots, width, sum(out_features))
        self.register_buffer("a", a, persistent=False)
        self.register_buffer("b", b, persistent=False)

    def forward(
        self, x: torch.Tensor, uses: torch.Tensor, columns: slice = slice(None)
    ) -> torch.Tensor:
        """Return what the adapters add to `columns` of the projection of x [tokens, in_features].

        Args:
            x: the input of the projection.
            uses: [tokens, slots], or [1, slots] for all tokens alike: 1 where a token uses the
                adapter in a slot, else 0.
            columns: of the output.
        """
        num_slots, width, _ = self.a.shape
        thin = functional.linear(x, self.a.flatten(0, 1)).view(-1, num_slots, width)
        return (thin * uses[:, :, None]).flatten(1) @ self.b.flatten(0, 1)[:, columns]

    def fill(self, slot: int, parts: Sequence[AdapterMatrices | None]) -> None:
        """Put the matrices of one adapter into a slot; None for a projection it leaves alone."""
        a, b = torch.zeros_like(self.a[slot]), torch.zeros_like(self.b[slot])
        column = 0
        for index, (size, matrices) in enumerate(zip(self.out_features, parts, strict=True)):
            if matrices is not None:
                rows = slice(index * self.rank, index * self.rank + len(matrices.a))
                a[rows] = matrices.a.to(a)
                b[rows, column : column + size] = matrices.b.T.to(b)
            column += size
        self.a[slot] = a
        self.b[slot] = b


def make_adapter_weights(config: LlamaConfig, lora_config: LoRAConfig) -> nn.ModuleDict:
    """Return the empty slots of one layer, by the name of the matrix."""
    shapes = get_projection_shapes(config)
    return nn.ModuleDict(
        {
            name: AdapterWeights(
                [shapes[part][0] for part in parts],
                shapes[parts[0]][1],
                lora_config.max_loras,
                lora_config.max_lora_rank,
            )
            for name, parts in PARTS.items()
        }
    )
