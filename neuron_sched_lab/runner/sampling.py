"""Sampling: vLLM's own sampler, fed the way vLLM's own workers feed it.

A batch of plain greedy requests never comes here: its graph has the tokens already. Everything
else runs on the host, where a seeded request draws the same random numbers on every device.

Source: vLLM's InputBatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from vllm.sampling_params import SamplingParams, SamplingType
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    BatchUpdate,
    build_logitsprocs,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.structured_output.utils import apply_grammar_bitmask

from .limits import REQUEST_LIMITS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.outputs import SamplerOutput

    from .request_table import RequestState


class BatchSampler:
    """Samples one token for each request of a batch."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        model_config = vllm_config.model_config
        self.vocab_size = model_config.get_vocab_size()
        self._sampler = Sampler(model_config.logprobs_mode, model_config.use_fp64_gumbel)
        custom = [p for p in model_config.logits_processors or [] if p != REQUEST_LIMITS]
        self._processors = build_logitsprocs(vllm_config, torch.device("cpu"), False, False, custom)
        self._has_custom_processors = any(
            type(processor) not in BUILTIN_LOGITS_PROCESSORS for processor in self._processors.all
        )
        self._requests: list[RequestState] = []
        self._num_rows = 0
        self._metadata: SamplingMetadata | None = None

    def is_plain_greedy(self, params: SamplingParams) -> bool:
        """Tell whether the answer is the largest logit and nothing else is asked for."""
        return (
            params.sampling_type == SamplingType.GREEDY
            and params.logprobs is None
            and params.logprob_token_ids is None
            and not _has_penalties(params)
            and not params.min_tokens
            and not params.logit_bias
            and not params.allowed_token_ids
            and not params.bad_words_token_ids
            and not self._has_custom_processors
        )

    def sample(self, logits: torch.Tensor, requests: list[RequestState]) -> SamplerOutput:
        """Sample from logits [len(requests), vocab_size] on the host; they may be overwritten."""
        if requests != self._requests or self._metadata is None:
            self._set_batch(requests)
        else:
            for processor in self._processors.all:
                processor.update_state(None)
        # vLLM compiles parts of its sampler; for so few rows that takes seconds and saves none.
        with torch.compiler.set_stance("force_eager"):
            return self._sampler(logits, self._metadata)

    def forget_batch(self) -> None:
        """Note that a batch bypassed the sampler, so that it starts from scratch next time."""
        self._requests = []
        self._metadata = None

    def _set_batch(self, requests: list[RequestState]) -> None:
        """Tell the logits processors who stands in which row, and collect the parameters."""
        update = BatchUpdate(
            batch_size=len(requests),
            removed=range(len(requests), self._num_rows),
            added=[
                (row, r.sampling_params, r.prompt_token_ids, r.output_token_ids)
                for row, r in enumerate(requests)
            ],
            moved=[],
        )
        for processor in self._processors.all:
            processor.update_state(update)
        self._num_rows = len(requests)
        self._requests = list(requests)
        self._metadata = self._make_metadata(requests)

    def _make_metadata(self, requests: Sequence[RequestState]) -> SamplingMetadata:
        params = [r.sampling_params for r in requests]
        greedy = [p.sampling_type == SamplingType.GREEDY for p in params]
        temperature = [
            0.0 if p.sampling_type == SamplingType.GREEDY else p.temperature for p in params
        ]
        top_k = [p.top_k if 0 < p.top_k < self.vocab_size else self.vocab_size for p in params]
        no_penalties = not any(_has_penalties(p) for p in params)
        bad_words = {
            i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids
        }
        logprobs = [
            self.vocab_size if p.logprobs == -1 else p.logprobs
            for p in params
            if p.logprobs is not None
        ]
        logprob_token_ids = {
            i: p.logprob_token_ids for i, p in enumerate(params) if p.logprob_token_ids is not None
        }
        needs_outputs = not no_penalties or bad_words or self._has_custom_processors
        return SamplingMetadata(
            temperature=None if all(greedy) else torch.tensor(temperature),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=torch.tensor([p.top_p for p in params])
            if any(p.top_p < 1 for p in params)
            else None,
            top_k=torch.tensor(top_k, dtype=torch.int32)
            if any(k < self.vocab_size for k in top_k)
            else None,
            generators={i: r.generator for i, r in enumerate(requests) if r.generator is not None},
            max_num_logprobs=max(logprobs, default=None),
            no_penalties=no_penalties,
            prompt_token_ids=None if no_penalties else self._pad_prompts(requests),
            frequency_penalties=torch.tensor([p.frequency_penalty for p in params]),
            presence_penalties=torch.tensor([p.presence_penalty for p in params]),
            repetition_penalties=torch.tensor([p.repetition_penalty for p in params]),
            output_token_ids=[r.output_token_ids for r in requests] if needs_outputs else [],
            allowed_token_ids_mask=self._make_allowed_mask(params),
            bad_words_token_ids=bad_words,
            logitsprocs=self._processors,
            logprob_token_ids=logprob_token_ids or None,
        )

    def _pad_prompts(self, requests: Sequence[RequestState]) -> torch.Tensor:
        """[rows, longest prompt], padded with vocab_size, which is no token."""
        rows = [torch.tensor(r.prompt_token_ids) for r in requests]
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.vocab_size
        )

    def _make_allowed_mask(self, params: Sequence[SamplingParams]) -> torch.Tensor | None:
        """[rows, vocab_size], True for tokens that must not be sampled."""
        if not any(p.allowed_token_ids for p in params):
            return None
        mask = torch.zeros(len(params), self.vocab_size, dtype=torch.bool)
        for row, p in enumerate(params):
            if p.allowed_token_ids:
                mask[row] = True
                mask[row, p.allowed_token_ids] = False
        return mask


def apply_grammar(
    logits: torch.Tensor,
    req_ids: list[str],
    scheduler_output: SchedulerOutput,
    grammar_output: GrammarOutput,
) -> None:
    """Set the logits of tokens that a structured output does not allow to -inf, in place."""
    # Of its InputBatch, vLLM's function reads only the order of the rows.
    batch = SimpleNamespace(req_ids=req_ids)
    apply_grammar_bitmask(scheduler_output, grammar_output, batch, logits)


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
    )
