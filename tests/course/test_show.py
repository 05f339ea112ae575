"""Source and device, as notebooks show them."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from neuron_sched_lab.course.show import device_report, get_source, show_source
from neuron_sched_lab.runner import device
from neuron_sched_lab.scheduler import HoldbackScheduler
from neuron_sched_lab.scheduler.buckets import get_bucket_for_count

CELL = '''
def decorate(cls):
    return cls


@decorate
class Mine:
    """Not <b>bold</b>."""

    def method(self):
        return "```"  # three
'''


@pytest.fixture
def mine():
    """A class that a notebook cell defines."""
    shell = InteractiveShell()
    shell.run_cell(CELL)
    yield shell.user_ns["Mine"]
    InteractiveShell.clear_instance()


def test_source_of_what_is_packaged():
    assert get_source(get_bucket_for_count).startswith("def get_bucket_for_count(")
    assert get_source(HoldbackScheduler).startswith("class HoldbackScheduler(Scheduler):")
    assert get_source(HoldbackScheduler.at_capacity).startswith("@property\ndef at_capacity")


def test_source_of_a_class_made_in_a_cell(mine):
    assert get_source(mine).startswith("@decorate\nclass Mine:")
    assert get_source(mine).endswith('return "```"  # three')
    assert get_source(mine.method).startswith("def method")


def test_what_has_no_source_is_named():
    with pytest.raises(ValueError, match="built-in function len.*source is not to be found"):
        get_source(len)


def test_nothing_in_the_source_ends_its_block(mine):
    markdown = show_source(mine)._repr_markdown_()
    assert markdown.startswith(
        "<details>\n<summary>Mine, yours</summary>\n\n````python\n@decorate\n"
    )
    assert markdown.endswith("\n````\n\n</details>")
    assert show_source(mine, folded=False)._repr_markdown_().startswith("**Mine, yours**\n\n````py")


def test_text_names_where_each_part_is_from():
    shown = show_source(get_bucket_for_count)
    title = "get_bucket_for_count, in neuron_sched_lab.scheduler.buckets"
    assert repr(shown) == title
    assert str(shown).startswith(f"# {title}\ndef get_bucket_for_count(")


def test_device_report_on_a_cpu_machine(tmp_path):
    assert repr(device_report(tmp_path)) == (
        "device: CPU (no NeuronCore on this machine)\n"
        "Decisions, shapes and tokens do not depend on the device; times do."
    )


@pytest.fixture
def trn2(tmp_path):
    """The files of a machine with two devices, one of them held by process 12."""
    for name in ("neuron0", "neuron10"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
        folder = tmp_path / "sys/devices/virtual/neuron_device" / name
        folder.mkdir(parents=True)
        (folder / "core_count").write_text("8\n")
    for pid, target in (("9", "/dev/null"), ("12", "/dev/neuron0")):
        (tmp_path / "proc" / pid / "fd").mkdir(parents=True)
        (tmp_path / "proc" / pid / "fd" / "3").symlink_to(target)
        (tmp_path / "proc" / pid / "cmdline").write_bytes(b"python\0-m\0other_kernel\0")
    return tmp_path


def test_device_report_names_who_holds_a_device(trn2, monkeypatch):
    monkeypatch.setattr(device, "find_neuron", lambda: None)
    report = repr(device_report(trn2)).splitlines()
    assert report[0] == "device: Neuron (2 devices, 16 NeuronCores)"
    assert report[1].startswith("software: torch-neuronx ")
    assert report[2] == "in use: PID 12 (python -m other_kernel) has neuron0"
    assert report[3] == (
        "To free it: in JupyterLab shut the other notebook's kernel down, or kill PID."
    )


def test_device_report_says_why_a_device_is_not_used(trn2):
    (trn2 / "proc/12/fd/3").unlink()
    report = repr(device_report(trn2)).splitlines()
    assert report[0] == (
        "device: CPU, in spite of 2 Neuron devices: torch_neuronx is not installed"
    )
    assert report[2] == "in use: by no process that you may look into"
