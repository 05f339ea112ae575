"""Does the suite notice when a rule of the scheduler is broken? One mutant a rule, by hand.

    python -m tests.scheduler.mutants [NAME ...]

Each mutant is a change to the text of neuron_sched_lab/scheduler, made in a copy. The tests named
with it must fail on the copy; without any mutant all of them must pass. vLLM is imported once, each
mutant runs in a fork of that process. Exit code 1 if a mutant survives, or does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path("neuron_sched_lab")
ROOM = PACKAGE / "scheduler"
TESTS = Path("tests") / "scheduler"


@dataclass(frozen=True)
class Mutant:
    """One broken rule, and who must notice."""

    rule: str
    file: str
    old: str
    new: str
    tests: str
    """Arguments of pytest, paths from tests/scheduler."""

    def apply(self, root: Path) -> None:
        """Break the rule in the copy at `root`.

        Raises:
            ValueError: the text to replace does not stand there exactly once.
        """
        path = root / ROOM / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"mutant {self.rule!r}: {self.old!r} stands {text.count(self.old)} times in "
                f"{self.file}, must be once; adapt the mutant to the code"
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


MUTANTS = (
    # Buckets
    Mutant(
        "a count takes the smallest bucket that holds it",
        "buckets.py",
        "index = bisect_left(buckets, count)",
        "index = min(bisect_left(buckets, count + 1), len(buckets) - 1)",
        "test_buckets.py",
    ),
    Mutant(
        "a count beyond the ladder is refused",
        "buckets.py",
        "if index == len(buckets):",
        "index = min(index, len(buckets) - 1)\n    if index < 0:",
        "test_buckets.py",
    ),
    Mutant(
        "the maximum closes the default ladder (B8)",
        "buckets.py",
        "return [*ladder, last]",
        "return ladder or [last]",
        "test_buckets.py test_holes_padding.py",
    ),
    Mutant(
        "the last bucket is the largest that is ever scheduled",
        "buckets.py",
        "if buckets[-1] != last:",
        "if buckets[-1] > last:",
        "test_config.py",
    ),
    Mutant(
        "the prefill ladder ends at the shorter of two limits",
        "config.py",
        "max_tokens = min(max_num_batched_tokens, max_model_len)",
        "max_tokens = max_num_batched_tokens",
        "test_config.py",
    ),
    Mutant(
        "an unknown setting is an error",
        "config.py",
        "if key not in known:",
        "if False:",
        "test_config.py",
    ),
    # Holding back
    Mutant(
        "one new prefill a step",
        "holdback.py",
        "self.max_prefills_per_batch = 1",
        "self.max_prefills_per_batch = 2",
        "test_holes_holdback.py test_admission.py",
    ),
    Mutant(
        "a prompt in chunks is finished before the next begins",
        "holdback.py",
        "if self.has_prefill_in_running:",
        "if False:",
        "test_admission.py",
    ),
    Mutant(
        "running requests, hidden or not, keep their adapter slots (B15)",
        "holdback.py",
        "if not self._adapter_fits(request):",
        "if False:",
        "test_admission.py",
    ),
    Mutant(
        "the adapter of the request itself needs a slot",
        "holdback.py",
        "running.add(request.lora_request.lora_int_id)",
        "running.discard(request.lora_request.lora_int_id)",
        "test_admission.py",
    ),
    Mutant(
        "sessions between inputs keep their seats (B11)",
        "holdback.py",
        "return len(self.running) + self.num_waiting_for_streaming_input",
        "return len(self.running)",
        "test_holes_holdback.py -k B11",
    ),
    Mutant(
        "no more seats than max_num_seqs",
        "holdback.py",
        "return self.num_seats_taken >= self.max_num_seqs",
        "return self.num_seats_taken > self.max_num_seqs",
        "test_admission.py",
    ),
    Mutant(
        "the first that may not start stops all behind it (FIFO)",
        "holdback.py",
        "                self.held_back = request\n                return",
        "                self.held_back = request\n                queue.remove_request(request)\n"
        "                queue.add_request(request)\n                return",
        "test_order.py",
    ),
    Mutant(
        "whoever is not the head leaves the queue from within",
        "holdback.py",
        "if request is queue.peek_request():",
        "if True:",
        "test_holes_holdback.py test_fuzz.py -k 'B3 or NeuronScheduler-0'",
    ),
    Mutant(
        "the second waiting queue is held back with the first (B3)",
        "holdback.py",
        "        side = getattr(self, compat.SIDE_QUEUE)\n        setattr",
        "        side = create_request_queue(self.policy)\n        return\n        setattr",
        "test_holes_holdback.py -k B3",
    ),
    Mutant(
        "whoever vLLM did not start returns to the head of its queue",
        "holdback.py",
        ".prepend_request(request)\n",
        ".add_request(request)\n",
        "test_holes_padding.py test_fuzz.py -k 'B7 or PaddedScheduler-0'",
    ),
    Mutant(
        "whoever vLLM put into its second queue stays there",
        "holdback.py",
        "while side:",
        "while side and _pop_last(side):",
        "test_deferred.py",
    ),
    Mutant(
        "an error in vLLM leaves the waiting queues whole (B7)",
        "holdback.py",
        "        finally:\n            self._restore_waiting()",
        "        except KeyError:\n            raise\n        else:\n            self._restore_waiting()\n"
        "        finally:",
        "test_holes_padding.py -k B7",
    ),
    Mutant(
        "a paused scheduler admits nobody (B6)",
        "compat.py",
        "if scheduler.pause_state:",
        "if False:",
        "test_holes_holdback.py -k B6",
    ),
    Mutant(
        "a request without its grammar is passed over",
        "compat.py",
        "    return next((r for r in queue if r is not head and is_ready(scheduler, r)), None)",
        "    return None",
        "test_holes_holdback.py test_fuzz.py -k 'B3 or NeuronScheduler-0'",
    ),
    Mutant(
        "a request whose output is in flight is not resumed",
        "compat.py",
        "if request.num_stale_output_tokens > 0 and not request.drop_stale_output:",
        "if False:",
        "test_resumption.py",
    ),
    Mutant(
        "vLLM's second queue comes first (fcfs)",
        "compat.py",
        "    if from_side is not None and not _compares_heads(scheduler):\n        return from_side, side",
        "    pass",
        "test_fuzz.py -k HoldbackScheduler",
    ),
    Mutant(
        "the more important of two heads comes first (priority)",
        "compat.py",
        "from_waiting is None or from_side < from_waiting",
        "True",
        "test_fuzz.py -k HoldbackScheduler",
    ),
    Mutant(
        "an outputless request decodes once its prompt is computed, another when it caught up (B4)",
        "holdback.py",
        "return num_computed_tokens < num_prompt_tokens + max(num_output_tokens - 1, 0)",
        "return num_computed_tokens < num_prompt_tokens",
        "test_holes_separation.py -k B4",
    ),
    Mutant(
        "the newest token is never in the cache yet",
        "holdback.py",
        "max(num_output_tokens - 1, 0)",
        "num_output_tokens",
        "test_worked_examples.py test_pacing.py",
    ),
    Mutant(
        "throttling is off while prefills pile up",
        "holdback.py",
        "self.prefill_capacity_bound = was_capacity_bound if deferred else bool(self.waiting)",
        "self.prefill_capacity_bound = was_capacity_bound",
        "test_holes_separation.py -k B12",
    ),
    Mutant(
        "held back requests are counted",
        "holdback.py",
        "num_waiting + len(self.holdback_queue) + len(self._side_holdback)",
        "num_waiting",
        "test_request_counts.py",
    ),
    # One phase a step
    Mutant(
        "a new prefill hides the decodes",
        "separation.py",
        "self.running, self.running_holdback = [], self.running",
        "self.running, self.running_holdback = self.running, []",
        "test_holes_padding.py test_worked_examples.py",
    ),
    Mutant(
        "a prompt in chunks hides the decodes",
        "separation.py",
        "self.running, self.running_holdback = prefills, decodes",
        "self.running, self.running_holdback = prefills + decodes, []",
        "test_admission.py test_pacing.py",
    ),
    Mutant(
        "hidden decodes return before the prefill (B5)",
        "separation.py",
        "self.running = hidden + visible",
        "self.running = visible + hidden",
        "test_holes_separation.py -k B5",
    ),
    Mutant(
        "held decodes return to their place",
        "separation.py",
        "self.running = [r for r in self._running_order if r in still]",
        "self.running = visible + hidden",
        "test_kv_admission.py",
    ),
    Mutant(
        "an error in vLLM leaves the running queue whole (B7)",
        "separation.py",
        "        finally:\n            self._restore_running()",
        "        except KeyError:\n            raise\n        else:\n            self._restore_running()",
        "test_holes_padding.py -k B7",
    ),
    Mutant(
        "after a refused prefill the decodes are next (B2)",
        "separation.py",
        "    progress_guard = True",
        "    progress_guard = False",
        "test_holes_admission.py -k B2",
    ),
    Mutant(
        "whoever stands in front after a refusal, the decodes are next",
        "separation.py",
        "if refusal.step == self.current_step:",
        "if False:",
        "test_holes_admission.py -k B2",
    ),
    Mutant(
        "a refused prefill waits until blocks are free",
        "separation.py",
        "and self._num_free_blocks <= refusal.num_free_blocks",
        "and False",
        "test_refusals.py",
    ),
    Mutant(
        "a refused prefill is tried again after a while",
        "separation.py",
        "and self.current_step - refusal.step < RETRY_REFUSED_PREFILL_AFTER",
        "",
        "test_refusals.py",
    ),
    Mutant(
        "so many prefill steps in a row and no more (B9)",
        "separation.py",
        "self._num_consecutive_prefills >= max_prefills",
        "self._num_consecutive_prefills > max_prefills",
        "test_holes_separation.py -k B9",
    ),
    Mutant(
        "so many prefill tokens and no more",
        "separation.py",
        "return self._num_stall_tokens + chunk > max_tokens",
        "return self._num_stall_tokens > max_tokens",
        "test_pacing.py",
    ),
    Mutant(
        "a decode step starts the count of prefills anew",
        "separation.py",
        "self._num_consecutive_prefills = self._num_stall_tokens = 0\n        if",
        "pass\n        if",
        "test_holes_separation.py test_pacing.py",
    ),
    Mutant(
        "throttled prefills wait for the decodes (B12)",
        "separation.py",
        "or (self._throttle_prefills and not self.prefill_capacity_bound)",
        "or False",
        "test_holes_separation.py -k B12",
    ),
    Mutant(
        "the watermark counts hidden decodes (B12)",
        "separation.py",
        "has_running = has_scheduled_reqs or bool(self.running_holdback)",
        "has_running = has_scheduled_reqs",
        "test_holes_separation.py -k B12",
    ),
    Mutant(
        "hidden requests are counted",
        "separation.py",
        "return num_running + len(self.running_holdback), num_waiting",
        "return num_running, num_waiting",
        "test_request_counts.py",
    ),
    # Padding
    Mutant(
        "a mixed batch is refused before vLLM commits to it (B7)",
        "padding.py",
        "        self._verify_visible_batch()\n",
        "",
        "test_holes_padding.py -k B7",
    ),
    Mutant(
        "a resumed request is a prefill",
        "padding.py",
        "if num_computed < num_older or req_id in resumed:",
        "if num_computed < num_older:",
        "test_resumption.py",
    ),
    Mutant(
        "a chunk is padded to its bucket, not to the largest",
        "padding.py",
        "return get_bucket_for_count(token_count, self.num_batched_tokens_buckets)",
        "return self.num_batched_tokens_buckets[-1]",
        "test_worked_examples.py",
    ),
    Mutant(
        "padding stays out of num_scheduled_tokens",
        "padding.py",
        "padded = dict(scheduler_output.num_scheduled_tokens)",
        "padded = scheduler_output.num_scheduled_tokens",
        "test_worked_examples.py",
    ),
    Mutant(
        "padding is added up",
        "padding.py",
        "self.total_padding_tokens += padded[req_id] - num_tokens",
        "self.total_padding_tokens = padded[req_id] - num_tokens",
        "test_total_padding.py",
    ),
    # Admission by KV
    Mutant(
        "the null block is nobody's (B1)",
        "admission.py",
        "return max(1, (num_blocks - NUM_NULL_BLOCKS) // blocks_per_request)",
        "return max(1, num_blocks // blocks_per_request)",
        "test_holes_admission.py -k B1",
    ),
    Mutant(
        "the bound is never switched off (B2)",
        "admission.py",
        "return max(1, (num_blocks - NUM_NULL_BLOCKS) // blocks_per_request)",
        "return (num_blocks - NUM_NULL_BLOCKS) // blocks_per_request or num_blocks",
        "test_holes_admission.py -k B2",
    ),
    Mutant(
        "a prefill is held back while the cache is spoken for",
        "admission.py",
        "if not self._kv_admits(request):",
        "if False:",
        "test_admission.py test_kv_admission.py",
    ),
    Mutant(
        "a session that goes on overtakes whom it keeps out",
        "admission.py",
        "if not self._sessions or self.admitted_from:",
        "if True:",
        "test_sessions.py",
    ),
    Mutant(
        "nothing is promised twice to sessions",
        "kv_policies.py",
        "if state.num_free < 0:",
        "if False:",
        "test_sessions.py",
    ),
    Mutant(
        "whoever passed others by returns behind them",
        "holdback.py",
        "if request in self.admitted_from and queue is self.admitted_from[request]:",
        "if False:",
        "test_order.py",
    ),
    Mutant(
        "a request that can never fit is refused (B2)",
        "admission.py",
        "if needed > usable:",
        "if needed > usable + 1:",
        "test_holes_admission.py -k never_fit",
    ),
    Mutant(
        "sessions between inputs keep their blocks",
        "admission.py",
        "num_holders = len(self.running) + len(between_inputs) + 1",
        "num_holders = len(self.running) + 1",
        "test_kv_admission.py",
    ),
    Mutant(
        "under the priority policy the important are served first",
        "admission.py",
        "running = sorted(self.running) if by_priority else self.running",
        "running = self.running",
        "test_kv_admission.py",
    ),
    Mutant(
        "the banker holds decodes back",
        "admission.py",
        "held_back = get_held_back(state)",
        "held_back = set()",
        "test_kv_admission.py",
    ),
    Mutant(
        "a state is safe only if everybody can finish",
        "kv_policies.py",
        "if holder.need > max(num_given_back, num_not_held):",
        "if holder.need > state.num_blocks:",
        "test_kv_policies.py",
    ),
    Mutant(
        "the last holder of a shared block gives it back",
        "kv_policies.py",
        "num_not_held += holder.allocated",
        "pass",
        "test_kv_policies.py",
    ),
    Mutant(
        "what the finished did not share is free whoever else still runs",
        "kv_policies.py",
        "num_given_back += holder.allocated - holder.shared",
        "pass",
        "test_kv_policies.py",
    ),
    Mutant(
        "no holder of a shared block but the last gives it back",
        "kv_policies.py",
        "num_given_back += holder.allocated - holder.shared",
        "num_given_back += holder.allocated",
        "test_kv_policies.py",
    ),
    Mutant(
        "a block is shared from its second holder on",
        "kv_claims.py",
        "block.ref_cnt > 1",
        "block.ref_cnt > 2",
        "test_kv_admission.py -k shared_by",
    ),
    Mutant(
        "next blocks come before newcomers",
        "kv_policies.py",
        "return is_safe_state(lend(state, {holder.request_id for holder in state.holders}))",
        "return is_safe_state(state)",
        "test_kv_admission.py",
    ),
    Mutant(
        "a claim is prompt and max_tokens, capped",
        "kv_claims.py",
        "return min(num_tokens, self._max_model_len)",
        "return num_tokens",
        "test_kv_admission.py",
    ),
    # States
    Mutant(
        "idle as soon as the last request ends (B13)",
        "neuron.py",
        '        self._enter_idle_if_empty("all decode complete and no prefill waiting")\n',
        "",
        "test_state_machine.py",
    ),
    Mutant(
        "idle as soon as the last request is aborted (B13)",
        "neuron.py",
        '        self._enter_idle_if_empty("last request aborted")\n',
        "",
        "test_state_machine.py",
    ),
    Mutant(
        "the last chunk of a prompt is prefill",
        "neuron.py",
        "after = PREFILL if self.scheduled_prefills else DECODE",
        "after = PREFILL if self.has_prefill_in_running else DECODE",
        "test_state_machine.py",
    ),
    Mutant(
        "an empty step changes no state",
        "neuron.py",
        "if scheduler_output.num_scheduled_tokens:",
        "if True:",
        "test_state_machine.py",
    ),
)


def copy_project(folder: Path) -> None:
    """Copy what the tests need."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    ignore = shutil.ignore_patterns("__pycache__", "*.safetensors")
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=ignore)
    shutil.copytree(ROOT / TESTS, folder / TESTS, ignore=ignore)
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")


@contextmanager
def project_copy() -> Iterator[Path]:
    """A copy of the project that a mutant may spoil."""
    with tempfile.TemporaryDirectory() as folder:
        copy_project(Path(folder))
        yield Path(folder)


def split_tests(tests: str) -> list[str]:
    """`a.py b.py -k 'x or y'` as arguments of pytest."""
    files, _, expression = tests.partition(" -k ")
    paths = [str(TESTS / file) for file in files.split()]
    return paths + (["-k", expression.strip("'")] if expression else [])


def passes(root: Path, arguments: list[str]) -> bool:
    """Run pytest in a fork of this process, on the project at `root`.

    Raises:
        RuntimeError: pytest could not run them, or ran them on another copy of the package.
    """
    log = root / "pytest.log"
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = _run_pytest(root, log, arguments)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in {0, 1}:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise RuntimeError(f"pytest {' '.join(arguments)} ended with code {code}:\n{tail}")
    return code == 0


def _run_pytest(root: Path, log: Path, arguments: list[str]) -> int:
    """In the child: the copy's package and tests, and nothing that the parent imported of ours."""
    import pytest

    for name in list(sys.modules):
        if name.partition(".")[0] in {"tests", PACKAGE.name}:
            del sys.modules[name]
    os.chdir(root)
    sys.path.insert(0, str(root))
    with log.open("w", encoding="utf-8") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--rootdir", str(root)]
        code = int(pytest.main([*options, *arguments]))
        sys.stdout.flush()
    package = sys.modules.get(PACKAGE.name)
    if package is not None and not str(package.__file__).startswith(str(root)):
        return 98
    return code


def kill(mutant: Mutant) -> bool:
    """Whether the tests notice the mutant."""
    with project_copy() as root:
        mutant.apply(root)
        return not passes(root, split_tests(mutant.tests))


def main() -> int:
    """Run all, or those named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only mutants whose rule contains one of these")
    names = parser.parse_args().names
    chosen = [m for m in MUTANTS if not names or any(name in m.rule for name in names)]

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm.v1.core.sched.async_scheduler  # noqa: F401  (once, before the forks)

    begin, survivors = time.monotonic(), []
    for mutant in chosen:
        with project_copy() as root:
            mutant.apply(root)
    arguments = {argument for mutant in chosen for argument in split_tests(mutant.tests)}
    with project_copy() as root:
        if not passes(root, sorted(name for name in arguments if name.endswith(".py"))):
            print("fails without any mutant:\n" + (root / "pytest.log").read_text("utf-8"))
            return 1
    for number, mutant in enumerate(chosen, start=1):
        killed = kill(mutant)
        survivors += [] if killed else [mutant]
        verdict = "killed" if killed else "SURVIVED"
        print(f"{number:>3} {verdict:<9} {mutant.file:<15} {mutant.rule}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {seconds:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
