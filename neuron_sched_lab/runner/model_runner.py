"""NeuronModelRunner: one SchedulerOutput in, one token for each request out.

A step has two halves, as vLLM's engine wants it: `execute_model` runs the forward graph,
`sample_tokens` picks the tokens. Between them the engine may compute a grammar's mask.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from vllm.utils.math_utils import cdiv
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    AsyncModelRunnerOutput,
    LogprobsLists,
    ModelRunnerOutput,
)

from ..scheduler.buckets import get_bucket_for_count
from ..scheduler.config import NeuronConfig
from ..scheduler.metrics import count_graph_compiles
from .device import DECODE, PREFILL, Device, GraphKey, GraphRegistry
from .inputs import (
    NO_ADAPTER,
    DecodeInputs,
    Int32Array,
    PrefillInputs,
    pad_adapter_slots,
    pad_decode,
    pad_prefill,
)
from .kv_cache import KVCache, allocate_kv_caches, get_kv_cache_spec
from .llama import Llama
from .llama_config import LlamaConfig
from .lora.adapter_cache import AdapterCache
from .request_table import RequestState, RequestTable
from .sampling import BatchSampler, apply_grammar
from .step import DecodeStep, PrefillStep, read_step

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

DEFAULT_KV_SEGMENT_SIZE = 2048
"""Tokens of prior context that prefill attention reads at a time, where neuron_config sets none."""


class _Executed(NamedTuple):
    """A step between its two halves.

    Attributes:
        scheduler_output: of the step.
        requests: whose rows the logits are, padding left out.
        positions: where each sampled token goes in its request.
        logits: [bucket, vocab_size], on the device.
        greedy_tokens: [bucket], int32, on the device.
        samples: False for a prefill chunk that is not the last of its prompt.
    """

    scheduler_output: SchedulerOutput
    requests: list[RequestState]
    positions: list[int]
    logits: torch.Tensor
    greedy_tokens: torch.Tensor
    samples: bool


class _Sampled:
    """Tokens of one step, on the device until somebody asks for them."""

    def __init__(
        self, requests: list[RequestState], positions: list[int], tokens: torch.Tensor
    ) -> None:
        self.requests = requests
        self.positions = positions
        self.tokens = tokens
        self._on_host: list[int] | None = None

    def to_host(self) -> list[int]:
        """Wait for the tokens, padding left out."""
        if self._on_host is None:
            self._on_host = self.tokens[: len(self.requests)].tolist()
        return self._on_host


class NeuronAsyncOutput(AsyncModelRunnerOutput):
    """What the engine holds while the tokens of a step are still being computed."""

    def __init__(self, req_ids: list[str], sampled: _Sampled) -> None:
        self._req_ids = req_ids
        self._sampled = sampled

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the tokens."""
        return _make_output(self._req_ids, [[token] for token in self._sampled.to_host()])


class NeuronModelRunner:
    """Runs a Llama on graphs of fixed shapes.

    Attributes:
        model: the Llama, once loaded.
        graphs: one for each bucket, with their log and counters.
        kv_caches: one KVCache for each layer.
        adapters: the LoRA adapters, once the model is loaded; None in an engine without LoRA.
        last_inputs: what the last graph ran on, as it left the host; for whoever watches.
        num_device_feeds: async decode steps whose input tokens never left the device.
        num_host_feeds: async decode steps that had to wait for the last tokens, because the batch
            had changed.
    """

    model: Llama
    adapters: AdapterCache | None = None

    def __init__(
        self, vllm_config: VllmConfig, device: Device, *, async_scheduling: bool = False
    ) -> None:
        self.vllm_config = vllm_config
        self.device = device
        self.async_scheduling = async_scheduling
        self.graphs = GraphRegistry(device)
        self.kv_caches: list[KVCache] = []
        self.last_inputs: PrefillInputs | DecodeInputs | None = None
        self.num_device_feeds = 0
        self.num_host_feeds = 0
        self.block_size = vllm_config.cache_config.block_size
        self._sampler = BatchSampler(vllm_config)
        self._executed: _Executed | None = None
        self._in_flight: deque[_Sampled] = deque()

    # Start.

    def load_model(self) -> None:
        """Read the checkpoint directory into a Llama on the device."""
        model_config = self.vllm_config.model_config
        neuron_config = NeuronConfig.from_vllm_config(self.vllm_config)
        sizes = neuron_config.kv_segment_size_buckets
        kv_segment_size = sizes[0] if sizes else self._round_to_blocks(DEFAULT_KV_SEGMENT_SIZE)
        with set_default_torch_dtype(model_config.dtype):
            model = Llama(
                LlamaConfig.from_hf(model_config.hf_config.to_dict()),
                self.device.kernels,
                model_config.max_model_len,
                kv_segment_size,
                self.vllm_config.lora_config,
            )
        model.load_weights(Path(model_config.model))
        self.model = model.to(self.device.torch_device).eval()
        self.model.pack_weights()
        if self.vllm_config.lora_config is not None:
            self.adapters = AdapterCache(self.model, self.vllm_config.lora_config)

    def _round_to_blocks(self, num_tokens: int) -> int:
        return cdiv(num_tokens, self.block_size) * self.block_size

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Describe the KV cache to vLLM."""
        return get_kv_cache_spec(
            self.model.config, self.block_size, self.vllm_config.model_config.dtype
        )

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate what depends on the number of blocks and on the final max_model_len."""
        (group,) = kv_cache_config.kv_cache_groups
        self.block_size = group.kv_cache_spec.block_size
        self.kv_caches = allocate_kv_caches(
            group.kv_cache_spec,
            len(group.layer_names),
            kv_cache_config.num_blocks,
            torch.device(self.device.torch_device),
        )
        max_model_len = self.vllm_config.model_config.max_model_len
        self.max_blocks = cdiv(max_model_len, self.block_size)
        self.requests = RequestTable(
            self.vllm_config.scheduler_config.max_num_seqs, max_model_len, self.max_blocks
        )

    @torch.inference_mode()
    def warm_up(self) -> float:
        """Make one graph for each bucket; return the seconds it took."""
        neuron_config = NeuronConfig.from_vllm_config(self.vllm_config)
        self.num_seqs_buckets = neuron_config.num_seqs_buckets
        ladder = [
            self._example(GraphKey(PREFILL, bucket))
            for bucket in neuron_config.num_batched_tokens_buckets
        ] + [self._example(GraphKey(DECODE, bucket)) for bucket in neuron_config.num_seqs_buckets]
        show = self.device.backend is not None and self.vllm_config.load_config.use_tqdm_on_load
        seconds = self.graphs.warm_up(ladder, show_progress=show)
        count_graph_compiles(self.vllm_config, self.graphs.log)
        return seconds

    def _example(self, key: GraphKey) -> tuple[GraphKey, Any, NamedTuple, list[KVCache]]:
        """Return what warms up a bucket's graph: one token, no context, nothing written."""
        token: Int32Array = np.zeros(1, dtype=np.int32)
        table: Int32Array = np.zeros((1, self.max_blocks), dtype=np.int32)
        inputs: PrefillInputs | DecodeInputs
        if key.phase == PREFILL:
            inputs = pad_prefill(
                token,
                table[0],
                num_computed_tokens=0,
                num_padded_tokens=key.bucket,
                block_size=self.block_size,
            )
        else:
            inputs = pad_decode(
                token, token, table, num_padded_seqs=key.bucket, block_size=self.block_size
            )
        inputs.slot_mapping[:] = -1
        if self.adapters is not None:
            num_slots = 1 if key.phase == PREFILL else key.bucket
            inputs = inputs._replace(adapter_slots=np.full(num_slots, NO_ADAPTER, dtype=np.int32))
        function = self.model.prefill if key.phase == PREFILL else self.model.decode
        return key, function, self._put(inputs), self.kv_caches

    # One step.

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run the forward pass of a step.

        Returns:
            None: call `sample_tokens` next. Or an empty output if nothing was scheduled.

        Raises:
            RuntimeError: the step is not one that a Neuron graph can run; see `read_step`.
        """
        self._settle(keep_newest=True)
        self._update_states(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        step = read_step(scheduler_output, self.requests.states)
        if isinstance(step, PrefillStep):
            self._executed = self._run_prefill(scheduler_output, step)
        else:
            self._executed = self._run_decode(scheduler_output, step)
        return None

    @torch.inference_mode()
    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Pick a token for each request of the step that was executed last."""
        executed, self._executed = self._executed, None
        assert executed is not None
        requests, req_ids = executed.requests, [r.req_id for r in executed.requests]
        if not executed.samples:
            return _make_output(req_ids, [[] for _ in requests])
        plain = all(self._sampler.is_plain_greedy(r.sampling_params) for r in requests)
        if plain and grammar_output is None:
            self._sampler.forget_batch()
            sampled = _Sampled(requests, executed.positions, executed.greedy_tokens)
            self._in_flight.append(sampled)
            if self.async_scheduling:
                return NeuronAsyncOutput(req_ids, sampled)
            self._settle()
            return _make_output(req_ids, [[token] for token in sampled.to_host()])

        self._settle()  # penalties and processors look at the tokens so far
        logits = executed.logits[: len(requests)].float().cpu()
        if grammar_output is not None:
            apply_grammar(logits, req_ids, executed.scheduler_output, grammar_output)
        sampler_output = self._sampler.sample(logits, requests)
        tokens = sampler_output.sampled_token_ids.flatten()
        self._in_flight.append(_Sampled(requests, executed.positions, tokens))
        self._settle()
        logprobs = sampler_output.logprobs_tensors
        return _make_output(
            req_ids,
            sampler_output.sampled_token_ids.tolist(),
            None if logprobs is None else logprobs.tolists(),
        )

    def release(self) -> None:
        """Free the caches and graphs; logs and counters stay."""
        self.kv_caches = []
        self.graphs.release()

    def _run_prefill(self, scheduler_output: SchedulerOutput, step: PrefillStep) -> _Executed:
        request = self.requests.states[step.req_id]
        end = step.num_computed_tokens + step.num_tokens
        inputs = pad_prefill(
            self.requests.token_ids[request.row, step.num_computed_tokens : end],
            self.requests.block_tables[request.row],
            num_computed_tokens=step.num_computed_tokens,
            num_padded_tokens=step.num_padded_tokens,
            block_size=self.block_size,
        )
        if self.adapters is not None:
            slots = self.adapters.get_slots([request.lora_request])
            inputs = inputs._replace(adapter_slots=slots)
        self.last_inputs = inputs
        key = GraphKey(PREFILL, step.num_padded_tokens)
        logits, tokens = self.graphs.run(key, self._put(inputs), self.kv_caches)
        return _Executed(
            scheduler_output, [request], [end], logits, tokens, samples=step.is_last_chunk
        )

    def _run_decode(self, scheduler_output: SchedulerOutput, step: DecodeStep) -> _Executed:
        requests = [self.requests.states[req_id] for req_id in step.req_ids]
        bucket = self._get_decode_bucket(len(requests))
        fed = self._feed_from_device(requests, bucket)
        rows = np.array([r.row for r in requests])
        positions = np.array(step.num_computed_tokens, dtype=np.int32)
        padded = pad_decode(
            self.requests.token_ids[rows, positions],
            positions,
            self.requests.block_tables[rows],
            num_padded_seqs=bucket,
            block_size=self.block_size,
        )
        if self.adapters is not None:
            slots = self.adapters.get_slots([r.lora_request for r in requests])
            padded = padded._replace(adapter_slots=pad_adapter_slots(slots, bucket))
        self.last_inputs = padded
        inputs = self._put(padded)
        if fed is not None:
            inputs = inputs._replace(input_ids=fed)
        logits, tokens = self.graphs.run(GraphKey(DECODE, bucket), inputs, self.kv_caches)
        targets = [position + 1 for position in step.num_computed_tokens]
        return _Executed(scheduler_output, requests, targets, logits, tokens, samples=True)

    def _get_decode_bucket(self, num_seqs: int) -> int:
        return get_bucket_for_count(num_seqs, self.num_seqs_buckets)

    def _feed_from_device(self, requests: list[RequestState], bucket: int) -> torch.Tensor | None:
        """Return the last tokens on the device, or None after they were written to the host.

        While the batch is unchanged, the last step's tokens are this step's input, row for row.
        """
        if not self.async_scheduling:
            return None
        newest = self._in_flight[-1] if self._in_flight else None
        if newest and newest.requests == requests and len(newest.tokens) == bucket:
            self.num_device_feeds += 1
            return newest.tokens
        self._settle()
        self.num_host_feeds += 1
        return None

    def _settle(self, *, keep_newest: bool = False) -> None:
        """Write tokens that are in flight to the host's tables, waiting for them."""
        while len(self._in_flight) > keep_newest:
            sampled = self._in_flight.popleft()
            for request, position, token in zip(
                sampled.requests, sampled.positions, sampled.to_host(), strict=True
            ):
                self.requests.append_token(request, position, token)

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Take in what the scheduler says about requests: ended, new, resumed, more blocks."""
        for req_id in scheduler_output.finished_req_ids:
            self.requests.remove(req_id)
        for new_req in scheduler_output.scheduled_new_reqs:
            self.requests.add(new_req)
        self._update_cached(scheduler_output.scheduled_cached_reqs)
        if scheduler_output.new_block_ids_to_zero:
            for cache in self.kv_caches:
                cache.k[scheduler_output.new_block_ids_to_zero] = 0
                cache.v[scheduler_output.new_block_ids_to_zero] = 0
        if scheduler_output.kv_cache_block_copies:
            raise RuntimeError(
                "kv_cache_block_copies: the scheduler asks to copy KV blocks, which only models "
                "with recurrent state need; NeuronWorker has Llama only"
            )

    def _update_cached(self, cached: CachedRequestData) -> None:
        if cached.resumed_req_ids:
            self._settle()  # first, for the scheduler's lists of their tokens are newer
        for req_id, new_block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_block_ids is None:
                continue
            state = self.requests.states[req_id]
            if req_id in cached.resumed_req_ids:
                self.requests.set_blocks(state, new_block_ids[0])
                self.requests.set_tokens(state, cached.all_token_ids[req_id])
            else:
                self.requests.append_blocks(state, new_block_ids[0])

    def _put(self, inputs: Any) -> Any:
        """Move the arrays of a NamedTuple to the device."""
        return type(inputs)(
            *(None if a is None else self.device.put(torch.from_numpy(a)) for a in inputs)
        )


def _make_output(
    req_ids: list[str], sampled_token_ids: list[list[int]], logprobs: LogprobsLists | None = None
) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        req_ids=req_ids,
        req_id_to_index={req_id: index for index, req_id in enumerate(req_ids)},
        sampled_token_ids=sampled_token_ids,
        logprobs=logprobs,
    )
