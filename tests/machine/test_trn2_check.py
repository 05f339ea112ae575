"""trn2-check: what it skips, what it runs, what it calls failed."""

import pytest

from neuron_sched_lab.kernels.check import CheckResult
from neuron_sched_lab.machine import trn2_check


@pytest.fixture
def no_hardware(monkeypatch):
    monkeypatch.setattr(trn2_check, "find_nki", lambda: "nki is not installed")
    monkeypatch.setattr(trn2_check, "find_neuron", lambda: "torch_neuronx is not installed")
    monkeypatch.setattr(trn2_check, "check_simulate", lambda: [CheckResult("a", True, "fine")])


def test_without_hardware_the_report_says_what_was_not_run(tmp_path, no_hardware, capsys):
    path = tmp_path / "report.txt"
    assert trn2_check.run(path) == 0
    report = path.read_text(encoding="utf-8")
    assert report.count("SKIPPED: ") == 3
    assert "SKIPPED: kernels under nki.simulate\n  nki is not installed" in report
    assert "SKIPPED: quickstart on the device\n  torch_neuronx is not installed" in report
    assert "PASSED: kernels under the kit's own emulator, which is no proof for a Trn2" in report
    assert "steps: 1 passed, 0 failed, 3 skipped" in report
    assert report.strip() in capsys.readouterr().out


def test_with_hardware_every_step_runs(tmp_path, monkeypatch):
    ran = []

    def step(name):
        return lambda *_: ran.append(name) or [CheckResult(name, True, "fine")]

    for name in ("check_simulate", "check_device", "check_quickstart"):
        monkeypatch.setattr(trn2_check, name, step(name))
    monkeypatch.setattr(trn2_check, "find_nki", lambda: None)
    monkeypatch.setattr(trn2_check, "find_neuron", lambda: None)
    assert trn2_check.run(tmp_path / "report.txt") == 0
    assert ran == ["check_simulate", "check_device", "check_quickstart"]
    assert "steps: 3 passed, 0 failed, 0 skipped" in (tmp_path / "report.txt").read_text()


def crash():
    raise RuntimeError("nrt_init\nfailed")


@pytest.mark.parametrize(
    ("check", "detail"),
    [
        (crash, "RuntimeError: nrt_init failed"),
        (lambda: [CheckResult("x", False, "largest error 1.0")], "largest error 1.0"),
        (list, ""),  # a step that ran nothing did not pass
    ],
)
def test_a_failed_step_fails_the_run_and_the_next_one_goes_on(
    tmp_path, monkeypatch, no_hardware, check, detail
):
    monkeypatch.setattr(trn2_check, "find_neuron", lambda: None)
    monkeypatch.setattr(trn2_check, "check_device", check)
    monkeypatch.setattr(
        trn2_check, "check_quickstart", lambda device: [CheckResult(device, True, "fine")]
    )
    assert trn2_check.run(tmp_path / "report.txt") == 1
    report = (tmp_path / "report.txt").read_text()
    assert "FAILED: kernels on the device" in report
    assert "PASSED: quickstart on the device" in report
    assert detail in report


def test_a_report_that_cannot_be_written_is_found_first(tmp_path, no_hardware, monkeypatch):
    monkeypatch.setattr(trn2_check, "check_simulate", lambda: pytest.fail("ran"))
    with pytest.raises(OSError, match="nowhere"):
        trn2_check.run(tmp_path / "nowhere" / "report.txt")


def test_the_quickstart_runs_and_compares_with_the_cpu():
    results = trn2_check.check_quickstart("cpu")
    assert len(results) == 9
    assert [result for result in results if not result.passed] == []
