"""A Lab without an engine: the rules of NeuronScheduler in a few lines, for fast tests of widgets.

It has what widgets use of a Lab, and runs the same in every process. What it decides is not
under test; that it is drawn right is.
"""

from dataclasses import dataclass, field, replace

from neuron_sched_lab.trace.records import (
    DECODE,
    EMPTY,
    PREFILL,
    RequestInfo,
    Scheduled,
    StepInputs,
    StepRecord,
    TraceConfig,
)
from neuron_sched_lab.trace.trace import Trace

CONFIG = TraceConfig(
    scheduler="FakeScheduler",
    max_num_seqs=4,
    max_num_batched_tokens=128,
    max_model_len=512,
    block_size=32,
    kv_blocks_total=64,
    num_batched_tokens_buckets=(32, 64, 128),
    num_seqs_buckets=(1, 2, 4),
    max_kv_concurrent=4,
)
HOSTILE = '<img src=x onerror="window.hacked=1">\'"\u202egnp.exe' + "x" * 10_000
EMPTY_RECORD = StepRecord(
    step=0,
    state="IDLE",
    cause=None,
    phase=EMPTY,
    scheduled=(),
    waiting=(),
    held_back=(),
    hidden=(),
    running=(),
    num_waiting=0,
    num_held_back=0,
    hold_reason=None,
    held_head=None,
    decode_batch_bucket=None,
    kv_blocks_used=0,
    kv_blocks_total=CONFIG.kv_blocks_total,
)


@dataclass
class _Request:
    id: str
    prompt: int
    limit: int
    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)


class FakeLab:
    """See the module. `with_inputs` fills in the padded tensors, as our model runner does."""

    def __init__(self, config=CONFIG, *, with_inputs=False):
        self.config, self.with_inputs = config, with_inputs
        self.on_change = []
        self.closed = False
        self.reset()

    def reset(self):
        self.trace, self.text, self.pending_aborts = Trace(self.config), {}, []
        self._waiting, self._running = [], []
        self._free = list(range(1, self.config.kv_blocks_total + 1))
        self._state = "IDLE"
        self._changed()

    def close(self):
        self.closed = True

    @property
    def has_unfinished_requests(self):
        return bool(self._waiting or self._running)

    def add(self, prompt, *, max_tokens=16, request_id=None, **_sampling):
        if self.closed:
            raise RuntimeError("Lab: this Lab was closed; make a new one")
        if max_tokens < 1:
            raise ValueError(f"max_tokens: {max_tokens} must be at least 1")
        request_id = request_id or f"r{len(self.trace.requests)}"
        text = prompt if isinstance(prompt, str) else None
        info = RequestInfo(request_id, len(prompt), max_tokens, len(self.trace) + 1, text)
        self.trace.requests[request_id] = info
        self.text[request_id] = ""
        self._waiting.append(_Request(request_id, len(prompt), max_tokens))
        self._changed()
        return request_id

    def abort(self, request_id):
        if request_id not in self.trace.requests:
            raise KeyError(f"request_id: {request_id!r} is unknown")
        for queue in (self._waiting, self._running):
            for request in [r for r in queue if r.id == request_id]:
                queue.remove(request)
                self._free += request.blocks
                self.pending_aborts.append(request_id)
        self._changed()

    def step(self):
        if self.closed:
            raise RuntimeError("Lab: this Lab was closed; make a new one")
        if not self.has_unfinished_requests:
            return None
        reason = self._admit()
        prefills = [r for r in self._running if r.computed < r.prompt][:1]
        batch = prefills or [r for r in self._running if r.computed >= r.prompt]
        record = self._record(batch, PREFILL if prefills else DECODE, reason)
        self.trace.records.append(record)
        self.pending_aborts.clear()
        self._running = [r for r in self._running if r.id not in dict(record.finished)]
        self._changed()
        return record

    def run(self):
        while self.step() is not None:
            pass
        return self.trace

    def _changed(self):
        for callback in self.on_change:
            callback()

    def _admit(self):
        """Let the head of the queue in, or return why not."""
        if not self._waiting:
            return None
        if len(self._running) >= self.config.max_num_seqs:
            return "at capacity"
        if any(r.computed < r.prompt for r in self._running):
            return "prefill in progress"
        self._running.append(self._waiting.pop(0))
        return "prefill batch full" if self._waiting else None

    def _record(self, batch, phase, reason):
        before = self._state
        self._state = "ACTIVE_PREFILL" if phase == PREFILL else "ACTIVE_DECODE"
        running = tuple(r.id for r in self._running)
        scheduled = tuple(self._advance(r, phase) for r in batch)
        finished = tuple((r.id, "length") for r in batch if r.generated >= r.limit)
        used = self.config.kv_blocks_total - len(self._free)
        record = replace(
            EMPTY_RECORD,
            step=len(self.trace) + 1,
            state=self._state,
            cause=f"from {before}",
            phase=phase,
            scheduled=scheduled,
            held_back=tuple(r.id for r in self._waiting),
            num_held_back=len(self._waiting),
            hidden=tuple(i for i in running if i not in {r.id for r in batch}),
            running=running,
            hold_reason=reason,
            held_head=self._waiting[0].id if reason else None,
            decode_batch_bucket=self._bucket(len(batch), 1) if phase == DECODE else None,
            kv_blocks_used=used,
            kv_blocks=tuple((r.id, tuple(r.blocks)) for r in self._running),
            new_text=tuple((s.request_id, "ab"[s.num_tokens % 2]) for s in scheduled),
            finished=finished,
            aborted=tuple(self.pending_aborts),
            inputs=self._inputs(scheduled, phase) if self.with_inputs else None,
            model_seconds=0.001,
        )
        for request in batch:
            if request.id in dict(finished):
                self._free += request.blocks
        return record

    def _advance(self, request, phase):
        computed = request.computed
        tokens = 1
        if phase == PREFILL:
            tokens = min(request.prompt - computed, self.config.max_num_batched_tokens)
        padded = self._bucket(tokens, 0) if phase == PREFILL else 1
        request.computed += tokens
        sampled = request.computed >= request.prompt
        request.generated += sampled
        while len(request.blocks) * self.config.block_size < request.computed:
            request.blocks.append(self._free.pop(0))
        self.text[request.id] += "ab"[tokens % 2]
        return Scheduled(request.id, phase, computed, tokens, padded, (7,) if sampled else ())

    def _bucket(self, number, which):
        ladders = self.config.num_batched_tokens_buckets, self.config.num_seqs_buckets
        return next(rung for rung in ladders[which] if rung >= number)

    def _inputs(self, scheduled, phase):
        size = scheduled[0].num_padded_tokens
        if phase == DECODE:
            size = self._bucket(len(scheduled), 1)
        numbers = [s.num_computed_tokens + n for s in scheduled for n in range(s.num_tokens)]
        padding = [0] * (size - len(numbers))
        slots = [n + 32 for n in numbers] + [-1] * len(padding)
        ids = [5 + n % 10 for n in numbers] + padding
        return StepInputs(tuple(ids), tuple(numbers + padding), tuple(slots))


def make_lab(**settings):
    """A FakeLab with six requests, one of them hostile, that have not run yet."""
    lab = FakeLab(**settings)
    for index, length in enumerate((40, 300, 20, 100, 64)):
        lab.add([7] * length, max_tokens=4 + index, request_id=f"r{index}")
    lab.add([7] * 30, max_tokens=6, request_id=HOSTILE)
    return lab
