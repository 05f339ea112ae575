"""Every mutant still applies to the code, and two of them are killed. All: mutants.py."""

import subprocess
import sys

import pytest

from tests.scheduler.mutants import MUTANTS, ROOT, TESTS, project_copy, split_tests

TWO = ("hidden decodes return", "smallest bucket")


@pytest.fixture(scope="module")
def text_of():
    """The text of a file of the room."""
    return lambda file: (ROOT / "neuron_sched_lab" / "scheduler" / file).read_text("utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_applies(mutant, text_of):
    assert text_of(mutant.file).count(mutant.old) == 1
    assert mutant.old != mutant.new
    compile(text_of(mutant.file).replace(mutant.old, mutant.new), mutant.file, "exec")
    for path in split_tests(mutant.tests):
        assert not path.endswith(".py") or (ROOT / path).is_file()


def test_each_breaks_a_rule_of_its_own():
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS) >= 30


def test_a_mutant_spoils_the_copy_only(text_of):
    mutant = MUTANTS[0]
    before = text_of(mutant.file)
    with project_copy() as root:
        mutant.apply(root)
        assert (root / TESTS).is_dir()
        with pytest.raises(ValueError, match="stands 0 times"):
            mutant.apply(root)
    assert text_of(mutant.file) == before


def test_two_are_killed():
    command = [sys.executable, "-m", "tests.scheduler.mutants", *TWO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 mutants killed" in done.stdout
