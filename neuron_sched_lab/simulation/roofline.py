"""RooflineCostModel: step times of a Trn2 from published rates, for models by name.

Attention is this package's own kernels: the bytes they move and the flops they multiply, as
`kernels/cost.py` counts them and the emulator confirms. The rest of a layer is weights.

Peak rates are the published ones (Neuron documentation: NKI guide to Trainium2, trn2 instance
page). How much of them is reached is in three constants, fitted to the few latencies that are
published; nothing here was measured on hardware. Medians against the published ones:

    vLLM Neuron, Llama-3.1-8B, TP 8, 512 in / 128 out, 2 users     TTFT  -1 %, TPOT  -9 %
    vLLM Neuron, gpt-oss-120b, TP 16, 512 in / 128 out, 1 user     TTFT  +1 %, TPOT +11 %
    NxD Inference, Llama-3.3-70B, TP 64, 10,000 in, 1 user         TTFT +10 %, TPOT  +4 %
    NxD Inference, Llama-3.1-405B, TP 64, the same                 TTFT twice, TPOT +26 %

So the last, much larger than what it was fitted to, is out of its range. `benchmarks/fidelity.py`
prints the table anew.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..kernels.cost import AttentionShape

BF16_BYTES = 2


class ModelShape(NamedTuple):
    """What a model's cost depends on; sizes as in its Hugging Face config.

    Attributes:
        num_layers: num_hidden_layers.
        hidden_size: width of the residual stream.
        num_heads: num_attention_heads.
        num_kv_heads: num_key_value_heads.
        head_dim: width of a head.
        intermediate_size: width of a gated MLP, of one expert where there are several.
        vocab_size: rows of the output projection.
        num_experts: experts of a layer, 1 for a dense model.
        experts_per_token: experts that a token goes through.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_experts: int = 1
    experts_per_token: int = 1

    @property
    def attention_params(self) -> int:
        """Weights of one layer's projections: q and o, k and v."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * self.head_dim * heads

    @property
    def expert_params(self) -> int:
        """Weights of one gated MLP: gate, up, down."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def head_params(self) -> int:
        """Weights of the output projection."""
        return self.hidden_size * self.vocab_size


MODELS = {
    "llama-3.1-8b": ModelShape(32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-70b": ModelShape(80, 8192, 64, 8, 128, 28672, 128256),
    "llama-3.1-405b": ModelShape(126, 16384, 128, 8, 128, 53248, 128256),
    "gpt-oss-20b": ModelShape(24, 2880, 64, 8, 64, 2880, 201088, 32, 4),
    "gpt-oss-120b": ModelShape(36, 2880, 64, 8, 64, 2880, 201088, 128, 4),
}

PEAK_FLOPS_PER_CORE = 79e12
"""BF16, one physical core (NKI guide to Trainium2; the chip's 667e12 / 8 would be 83e12)."""

HBM_BYTES_PER_SECOND_PER_CORE = 2.9e12 / 8
"""One physical core's share of the chip's HBM bandwidth."""

MFU = 0.19
"""Share of the peak FLOPS that a prefill reaches."""

MBU = 0.8
"""Share of the HBM bandwidth that a decode step reaches, beyond LAYER_SECONDS."""

LAYER_SECONDS = 185e-6
"""What each layer of each step takes whatever its size: two all-reduces and the start of its
kernels. Decode at small batches is mostly this."""

EXPERT_BLOCK_TOKENS = 512
"""Tokens to which the share of each expert is padded in a prefill. An inference: only with it does
gpt-oss-120b's published prefill of 512 tokens come near the time of a dense model of its size."""


@dataclass(frozen=True)
class RooflineCostModel:
    """Step times of a model in BF16 on Trn2.

    With P the weights of attention, MLP and output projection, c the tensor parallel degree in
    logical cores, each of `lnc` physical ones, n the tokens of a prefill bucket, L the layers:

        prefill  = L * (LAYER_SECONDS + kernels) + 2 * P * n / (MFU * c * lnc * peak)
        decode   = L * (LAYER_SECONDS + kernels) + 2 * P / (MBU * c * lnc * bandwidth)
        kernels  = segmented_attention or paged_decode_attention, and kv_cache_update: for each
                   the longer of bytes / (MBU * bandwidth) and flops / (MFU * peak)

    with PEAK_FLOPS_PER_CORE and HBM_BYTES_PER_SECOND_PER_CORE. A decode step whose weights need
    more FLOPs than bytes allow takes as long as those FLOPs. The output projection is computed
    for one token of a prefill and for every row of a decode. Of a mixture of experts, a decode
    reads those that its rows fall upon if they choose at random; a prefill computes blocks of
    EXPERT_BLOCK_TOKENS for each.

    A kernel runs on one logical core with its share of the heads, at least one KV head. It splits
    KV heads between the physical cores; a single one is computed by both alike. A head narrower
    than the 128 rows of the tensor engine uses it in proportion.

    A decode attends to the KV range that its graph is shaped for, and reads it as a whole:
    `max_model_len`, or the smallest of `decode_context_length_buckets` that holds the longest
    request. (Neuron's pages differ on whether unused blocks are skipped; this is the larger
    reading. A CostModel is not told the other requests' lengths either.)

    Attributes:
        model: one of MODELS, or a ModelShape.
        tp_degree: logical cores that share the model.
        max_model_len: longest sequence, in tokens.
        lnc: physical cores in a logical one, 1 or 2.
        decode_context_length_buckets: ascending, below `max_model_len`; empty for one graph.
        block_size: tokens in a KV block.
        kv_segment_size: tokens of prior context that a prefill reads at a time.

    Raises:
        ValueError: a setting is wrong; it is named.
    """

    model: str | ModelShape
    tp_degree: int
    max_model_len: int
    lnc: int = 2
    decode_context_length_buckets: tuple[int, ...] = ()
    block_size: int = 32
    kv_segment_size: int = 1024

    def __post_init__(self) -> None:
        if isinstance(self.model, str) and self.model not in MODELS:
            raise ValueError(
                f"model: {self.model!r} is none of {', '.join(MODELS)}; give one or a ModelShape"
            )
        if self.lnc not in {1, 2}:
            raise ValueError(f"lnc: {self.lnc} must be 1 or 2, physical cores in a logical one")
        for name in ("tp_degree", "max_model_len", "block_size", "kv_segment_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.kv_segment_size % self.block_size:
            raise ValueError(
                f"kv_segment_size: {self.kv_segment_size} must be a multiple of block_size = "
                f"{self.block_size}"
            )
        ladder = (*self.decode_context_length_buckets, self.max_model_len)
        if list(ladder) != sorted(set(ladder)):
            raise ValueError(
                f"decode_context_length_buckets: {self.decode_context_length_buckets} must ascend "
                f"and stay below max_model_len = {self.max_model_len}"
            )

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return MODELS[self.model] if isinstance(self.model, str) else self.model

    def prefill_seconds(self, bucket: int, context: int) -> float:
        """Return the seconds of a prefill chunk of `bucket` tokens after `context` others."""
        m = self.shape
        rows_per_layer = bucket
        if m.num_experts > 1:
            share = -(-bucket * m.experts_per_token // m.num_experts)
            blocks = -(-share // EXPERT_BLOCK_TOKENS)
            rows_per_layer = m.num_experts * blocks * EXPERT_BLOCK_TOKENS
        weights = m.num_layers * (m.attention_params * bucket + m.expert_params * rows_per_layer)
        kernels = self._kernel_seconds("segmented_attention", bucket=bucket, context=context)
        kernels += self._kernel_seconds("kv_cache_update", num_tokens=bucket)
        flops = 2 * (weights + m.head_params)
        return m.num_layers * (LAYER_SECONDS + kernels) + flops / (MFU * self._peak_flops)

    def decode_seconds(self, batch_bucket: int, context: int) -> float:
        """Return the seconds of a decode step of `batch_bucket` rows, the longest `context`."""
        graph = batch_bucket, self._kv_range(context)
        seconds = self._decode_graphs.get(graph)
        if seconds is None:
            seconds = self._decode_graphs[graph] = self._graph_seconds(*graph)
        return seconds

    @cached_property
    def _decode_graphs(self) -> dict[tuple[int, int], float]:
        """Seconds by (batch bucket, KV range), as far as asked for: there are few, often asked."""
        return {}

    def _graph_seconds(self, rows: int, kv_range: int) -> float:
        m = self.shape
        missed = (1 - m.experts_per_token / m.num_experts) ** rows
        experts = m.num_experts * (1 - missed) if m.num_experts > 1 else 1
        read = m.num_layers * (m.attention_params + experts * m.expert_params) + m.head_params
        used = m.num_layers * (m.attention_params + m.experts_per_token * m.expert_params)
        flops = 2 * (used + m.head_params) * rows
        weights = max(
            BF16_BYTES * read / (MBU * self._bytes_per_second), flops / (MFU * self._peak_flops)
        )
        kernels = self._kernel_seconds(
            "paged_decode_attention", context_lens=[kv_range - 1] * rows, max_context=kv_range
        )
        kernels += self._kernel_seconds("kv_cache_update", num_tokens=rows)
        return m.num_layers * (LAYER_SECONDS + kernels) + weights

    @cached_property
    def attention_shape(self) -> AttentionShape:
        """The attention of one layer on one logical core."""
        from ..kernels.cost import AttentionShape

        m = self.shape
        num_kv_heads = -(-m.num_kv_heads // self.tp_degree)
        return AttentionShape(
            num_heads=-(-m.num_heads // self.tp_degree),
            num_kv_heads=num_kv_heads,
            head_dim=m.head_dim,
            block_size=self.block_size,
            kv_segment_size=self.kv_segment_size,
            itemsize=BF16_BYTES,
            cores=self.lnc if num_kv_heads % self.lnc == 0 else 1,
        )

    def _kernel_seconds(self, kernel: str, **sizes: Any) -> float:
        """Return the seconds of one call of a kernel, for one layer."""
        # Imported when needed: it brings torch along.
        from ..kernels.cost import cost

        shape = self.attention_shape
        counted = cost(kernel, shape, **sizes)
        flops = counted.flops * max(1.0, 128 / shape.head_dim)
        return max(
            counted.bytes / (MBU * HBM_BYTES_PER_SECOND_PER_CORE * shape.cores),
            flops / (MFU * PEAK_FLOPS_PER_CORE * shape.cores),
        )

    def kv_cache_tokens(self, share: float = 0.3) -> int:
        """Return the tokens whose K and V fit `share` of the cores' memory (12 GiB each).

        0.3 is the largest share that vLLM Neuron gives the KV cache by default. With more cores
        than KV heads, several keep the same head.
        """
        kv_bytes_per_token = self.shape.num_layers * self.attention_shape.kv_bytes_per_token
        return int(share * 12 * 2**30 * self.lnc / kv_bytes_per_token)

    def _kv_range(self, context: int) -> int:
        ladder = self.decode_context_length_buckets
        index = bisect_left(ladder, context)
        return ladder[index] if index < len(ladder) else self.max_model_len

    @property
    def _peak_flops(self) -> float:
        return PEAK_FLOPS_PER_CORE * self.lnc * self.tp_degree

    @property
    def _bytes_per_second(self) -> float:
        return HBM_BYTES_PER_SECOND_PER_CORE * self.lnc * self.tp_degree
