"""The list of differences, its comparison with outcomes, and the run itself.

The run downloads vLLM's source distribution once (40 MB), and is skipped where that cannot be done.
"""

import pytest
import vllm

from tests.conformance import run
from tests.conformance.differs import parse, read_differences
from tests.conformance.sdist import SHA256, NotAvailableError, cache_folder, get_tests

VERSION = vllm.__version__.split("+")[0]
NEURON = "neuron_sched_lab.NeuronScheduler"
LIST = """
# A comment
[one prefill] HoldbackScheduler
core/a.py::test_one | starts two
core/a.py::test_many[*] | starts many
[a step lost] SeparatedScheduler - KVAdmissionScheduler
0.29 core/a.py::test_old[x-None] | goes on
"""


def outcome(result: str) -> dict:
    return {"outcome": result, "error": "", "built": []}


def test_parse():
    one, many, old = parse(LIST)
    assert (one.category, one.owner, one.until, one.version) == (
        "one prefill", "HoldbackScheduler", None, None,
    )  # fmt: skip
    assert (old.until, old.version, old.reason) == ("KVAdmissionScheduler", "0.29", "goes on")
    assert many.matches("core/a.py::test_many[1]") and many.matches("core/a.py::test_many[a-b]")
    assert not many.matches("core/a.py::test_many_more[1]")
    assert one.matches("core/a.py::test_one") and not one.matches("core/a.py::test_one[1]")


@pytest.mark.parametrize("line", ["core/a.py::test_one", "[x]", "core/a.py::test | why"])
def test_a_bad_line_is_quoted(line):
    with pytest.raises(ValueError, match="line 1: "):
        parse(line)


@pytest.mark.parametrize(
    ("version", "scheduler", "count"),
    [
        ("0.29.0", "neuron_sched_lab.HoldbackScheduler", 2),
        ("0.29.1", "neuron_sched_lab.SeparatedScheduler", 3),
        ("0.32.0", "neuron_sched_lab.SeparatedScheduler", 2),
        ("0.29.0", NEURON, 2),
        ("0.29.0", "vllm.v1.core.sched.scheduler.Scheduler", 0),
    ],
)
def test_a_line_holds_for_a_family_and_a_version(tmp_path, version, scheduler, count):
    file = tmp_path / "list.txt"
    file.write_text(LIST, encoding="utf-8")
    assert len(read_differences(file, version, scheduler)) == count


def test_as_expected():
    tests = {"core/a.py::test_one": outcome("failed"), "core/b.py::test": outcome("passed")}
    result = run.compare(tests, parse(LIST)[:1])
    assert result.ok and result.differing == {"one prefill": 1}


def test_surprises():
    listed = parse(LIST)
    tests = {
        "core/a.py::test_one": outcome("passed"),
        "core/a.py::test_many[1]": outcome("failed"),
        "core/b.py::test": outcome("failed"),
    }
    result = run.compare(tests, listed)
    assert not result.ok
    assert result.new_passes == ["core/a.py::test_one"]
    assert result.new_failures == ["core/b.py::test"]
    assert result.stale == listed[2:]


def test_the_table_counts_by_folder_and_by_class(capsys):
    tests = {
        "core/a.py::test_one": outcome("failed") | {"built": ["NeuronScheduler"]},
        "core/b.py::test": outcome("passed"),
        "kv_connector/c.py::test": outcome("failed"),
    }
    result = run.compare(tests, parse(LIST)[:1])
    run.print_table(result, "0.29.0", NEURON, None)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    # tests, passed, differs by design, skipped, failed, listed yet passed
    for row in (
        "core 2 1 1 0 0 0",
        "kv_connector 1 0 0 0 1 0",
        "all 3 1 1 0 1 0",
        "none, helpers only 2 1 0 0 1 0",
        "NeuronScheduler 1 0 1 0 0 0",
        "one prefill 1",
    ):
        assert row.split() in rows


def test_each_line_has_its_own_reason_and_class():
    import neuron_sched_lab

    for line in parse(run.DIFFERS.read_text(encoding="utf-8")):
        assert issubclass(neuron_sched_lab.NeuronScheduler, getattr(neuron_sched_lab, line.owner))
        assert len(line.reason) > 15
        assert line.version in {None, *(version.rpartition(".")[0] for version in SHA256)}


def test_an_unknown_version_is_named(tmp_path):
    with pytest.raises(NotAvailableError, match=r"vLLM 0\.1\.0: no hash"):
        get_tests("0.1.0", tmp_path)


def test_a_file_with_another_hash_is_not_unpacked(tmp_path):
    archive = tmp_path / f"vllm-{VERSION}.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(NotAvailableError, match="SHA-256"):
        get_tests(VERSION, tmp_path)
    assert not (tmp_path / VERSION).exists()


def test_vllms_own_tests(capsys):
    try:
        get_tests(VERSION, cache_folder())
    except NotAvailableError as error:
        pytest.skip(str(error))
    assert run.main([]) == 0, capsys.readouterr().out
