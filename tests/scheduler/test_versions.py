"""compat.py is the one file that knows one vLLM version from another."""

import ast
import re
from pathlib import Path

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from neuron_sched_lab.scheduler import compat

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((ROOT / "neuron_sched_lab").rglob("*.py"))
COMPAT = ROOT / "neuron_sched_lab" / "scheduler" / "compat.py"

ONLY_UP_TO_0_29 = (
    "skipped_waiting",
    "_try_promote_blocked_waiting_request",
    "_select_waiting_queue_for_scheduling",
)
ONLY_IN_0_32 = (
    "kv_holding_waiting",
    "deferred_waiting",
    "_handle_blocked_waiting_request",
    "max_num_active_reqs",
    "max_num_active_seqs",
)
OF_A_VERSION = {
    *ONLY_UP_TO_0_29,
    *ONLY_IN_0_32,
    "max_num_running_reqs",  # another meaning in 0.32
    "HAS_SKIPPED_WAITING",
    "_is_blocked_waiting_status",
}


def names_in(source: str) -> set[str]:
    """Identifiers, and words in strings that are no docstring: getattr() takes those."""
    names = set()
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"\w+", node.value) if id(node) not in docstrings else ())
    return names


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p != COMPAT], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_name_of_a_version_elsewhere(path):
    assert not names_in(path.read_text(encoding="utf-8")) & OF_A_VERSION


def test_compat_has_them():
    assert names_in(COMPAT.read_text(encoding="utf-8")) & OF_A_VERSION


def test_this_vllm_is_one_of_the_two_that_compat_tells_apart():
    source = Path(__import__(Scheduler.__module__, fromlist=["_"]).__file__).read_text("utf-8")
    old, new = (
        [name for name in names if re.search(rf"\b{name}\b", source)]
        for names in (ONLY_UP_TO_0_29, ONLY_IN_0_32)
    )
    assert bool(old) == compat.HAS_SKIPPED_WAITING
    assert bool(old) != bool(new), f"a vLLM between the two: it has {old} and {new}"
    assert compat.SIDE_QUEUE in (old or new)
