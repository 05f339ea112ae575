"""Runs vLLM's own scheduler tests against a scheduler class, and compares with what must differ.

    python -m tests.conformance.run
    python -m tests.conformance.run --scheduler mypkg.MyScheduler --async mypkg.MyAsyncScheduler

The tests are those of the installed version of vLLM, from its source distribution, which is
downloaded once. A test that fails though it is not listed in differs.txt, and one that passes
though it is, are errors. Exit code: 0 as expected, 1 not, 2 the tests could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.differs import Difference, expected_differences, read_differences
from tests.conformance.models import write_models
from tests.conformance.sdist import NotAvailableError, cache_folder, get_tests

HERE = Path(__file__).parent
DIFFERS = HERE / "differs.txt"

CORE = (
    "test_scheduler",
    "test_async_scheduler",
    "test_priority_preemption_bug",
    "test_deferred_block_free",
    "test_swa_inflight_window_free",
    "test_worker_slot_overflow",
    "test_mamba_align_chunk_split",
    "test_repetition_detection",
)
KV_CONNECTOR = (
    "test_remote_prefill_lifecycle",
    "test_remote_decode_lifecycle",
    "test_kv_connector_lifecycle",
    "test_invalid_blocks_correctness",
    "test_cache_pollution_prevention",
    "test_kv_load_failure_recovery",
    "test_error_propagation",
)
FILES = (
    *(f"core/{name}.py" for name in CORE),
    "streaming_input/test_scheduler_streaming.py",
    *(f"kv_connector/unit/{name}.py" for name in KV_CONNECTOR),
)
SLOW_FILES = ("core/test_priority_scheduler_random.py",)
"""Minutes, and with no check that anything gets done: a scheduler that stalls passes."""


@dataclass
class Result:
    """What became of the tests, against what was expected."""

    tests: dict[str, dict[str, Any]]
    """By id: outcome, error, and the names of the scheduler classes that it built."""
    expected: dict[str, Difference]
    stale: list[Difference]
    """Listed for this version and class, but no such test exists."""

    def ids(self, outcome: str) -> list[str]:
        return [test_id for test_id, test in self.tests.items() if test["outcome"] == outcome]

    @property
    def new_failures(self) -> list[str]:
        return [test_id for test_id in self.ids("failed") if test_id not in self.expected]

    @property
    def new_passes(self) -> list[str]:
        return [test_id for test_id in self.ids("passed") if test_id in self.expected]

    @property
    def differing(self) -> Counter[str]:
        """Tests that differ as expected, by category."""
        return Counter(
            self.expected[test_id].category
            for test_id in self.ids("failed")
            if test_id in self.expected
        )

    @property
    def ok(self) -> bool:
        return not (self.new_failures or self.new_passes or self.stale)


def run_tests(
    tests: Path, scheduler: str, async_scheduler: str | None, files: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Run `files` of vLLM's test package in `tests` in a process of their own.

    Raises:
        NotAvailableError: pytest stopped before it had run them.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "tests").symlink_to(tests / "tests")
        write_models(work)
        outcomes = work / "outcomes.json"
        command = [
            *(sys.executable, "-m", "pytest", "--quiet", "--tb=short"),
            # vLLM's conftest.py and pyproject.toml ask for more packages than a scheduler needs.
            *("--noconftest", "-c", os.devnull, "--rootdir", str(work)),
            *("-p", "no:cacheprovider", "-p", "plugin"),
            *("--scheduler-class", scheduler, "--outcomes", str(outcomes)),
            *(["--async-scheduler-class", async_scheduler] if async_scheduler else []),
            *(f"tests/v1/{file}" for file in files),
        ]
        # The caller's folder last, for a class that is not installed; before it `tests` is vLLM's.
        path = [str(HERE), str(work), str(Path.cwd())]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Some tests read the log; all are made for the default level and one process.
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        done = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, check=False
        )
        tests_ran, some_failed = 0, 1
        if done.returncode not in {tests_ran, some_failed} or not outcomes.exists():
            last = (done.stdout + done.stderr).splitlines()[-15:]
            tail = "\n".join(f"    {line}" for line in last)
            raise NotAvailableError(f"pytest ended with code {done.returncode}:\n{tail}")
        return json.loads(outcomes.read_text(encoding="utf-8"))


def compare(tests: dict[str, dict[str, Any]], listed: list[Difference]) -> Result:
    """Set the outcomes against the differences listed for this class and version."""
    expected, stale = expected_differences(listed, tests)
    return Result(tests, expected, stale)


def group_by_folder(result: Result) -> dict[str, list[str]]:
    """Test ids by the folder of vLLM's test package, and all of them."""
    groups: dict[str, list[str]] = {}
    for test_id in result.tests:
        groups.setdefault(test_id.partition("/")[0], []).append(test_id)
    return groups | {"all": list(result.tests)}


def group_by_class(result: Result) -> dict[str, list[str]]:
    """Test ids by the scheduler class that the test makes; some test only helpers."""
    groups: dict[str, list[str]] = {}
    for test_id, test in result.tests.items():
        groups.setdefault((test["built"] or ["none, helpers only"])[0], []).append(test_id)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def print_groups(result: Result, label: str, groups: dict[str, list[str]]) -> None:
    outcomes = {
        "passed": set(result.ids("passed")) - set(result.new_passes),
        "differs by design": set(result.ids("failed")) - set(result.new_failures),
        "skipped": set(result.ids("skipped")),
        "failed": set(result.new_failures),
        "listed, yet passed": set(result.new_passes),
    }
    print(f"{label:<32}{'tests':>7}" + "".join(f"{name:>{len(name) + 3}}" for name in outcomes))
    for name, test_ids in groups.items():
        counts = (
            f"{len(ids.intersection(test_ids)):>{len(outcome) + 3}}"
            for outcome, ids in outcomes.items()
        )
        print(f"{name:<32}{len(test_ids):>7}" + "".join(counts))


def print_table(result: Result, version: str, scheduler: str, async_scheduler: str | None) -> None:
    classes = [path.rpartition(".")[2] for path in (scheduler, async_scheduler) if path]
    print(f"vLLM {version}'s own scheduler tests against {' and '.join(classes)}\n")
    print_groups(result, "tests/v1/", group_by_folder(result))
    print()
    print_groups(result, "scheduler made", group_by_class(result))
    print("\ndiffers by design, because of")
    for category, count in result.differing.most_common():
        print(f"{category:<32}{count:>7}")


def print_surprises(result: Result) -> None:
    for test_id in result.new_failures:
        print(f"FAILED  {test_id}\n        {result.tests[test_id]['error']}")
    for test_id in result.new_passes:
        print(f"PASSED  {test_id}\n        listed: {result.expected[test_id].reason}")
    for line in result.stale:
        print(f"STALE   {line.test}\n        listed in differs.txt, but there is no such test")


def main(argv: list[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default="neuron_sched_lab.NeuronScheduler")
    parser.add_argument(
        "--async",
        dest="async_scheduler",
        help="for the tests of AsyncScheduler; without it they are skipped "
        "(with the default --scheduler: NeuronAsyncScheduler)",
    )
    parser.add_argument("--differs", type=Path, default=DIFFERS, help="another list than ours")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="%(default)s")
    parser.add_argument("--slow", action="store_true", help=f"also {', '.join(SLOW_FILES)}")
    args = parser.parse_args(argv)
    if args.async_scheduler is None and args.scheduler == parser.get_default("scheduler"):
        args.async_scheduler = "neuron_sched_lab.NeuronAsyncScheduler"

    import vllm

    version = vllm.__version__.split("+")[0]
    try:
        listed = read_differences(args.differs, version, args.scheduler)
        tests = get_tests(version, args.cache)
        files = FILES + (SLOW_FILES if args.slow else ())
        outcomes = run_tests(tests, args.scheduler, args.async_scheduler, files)
    except NotAvailableError as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    result = compare(outcomes, listed)
    print_table(result, version, args.scheduler, args.async_scheduler)
    print_surprises(result)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
