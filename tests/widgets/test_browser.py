"""The widgets in a real JupyterLab, driven in a real browser."""

import shutil
import time
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")

from playwright.sync_api import expect

from neuron_sched_lab.widgets import Dashboard
from tests.widgets.conftest import ROOT, SCREENSHOTS
from tests.widgets.fake_lab import make_lab

pytestmark = pytest.mark.browser

FAKE = """
from tests.widgets.fake_lab import *
from neuron_sched_lab.widgets import *
lab = make_lab(with_inputs=True)
"""
REAL = """
from neuron_sched_lab import Lab
from neuron_sched_lab.tiny_model.tasks import verified
from neuron_sched_lab.widgets import Dashboard

def make_lab():
    lab = Lab(max_num_seqs=4, max_num_batched_tokens=128, max_model_len=512)
    for task in verified(8, max_tokens=200, seed=1):
        lab.add(task.prompt, max_tokens=task.max_tokens)
    return lab

dashboard = Dashboard(make_lab)
"""
VIEW_NAMES = (
    "Queues",
    "State machine",
    "Padding",
    "KV cache",
    "Generated text",
    "Timeline",
    "Inputs",
)


def check(page, name):
    """Run one of the functions of page_checks.js."""
    checks = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
    return page.evaluate(f"{checks}.{name}()")


def column(lab_page, name):
    return lab_page.page.locator(f"[data-column='{name}']")


def drive(lab_page):
    """Press every button of a fresh dashboard, and see what comes of it."""
    step, message = lab_page.test_id("where"), lab_page.test_id("message")
    expect(step).to_have_attribute("data-step", "0")
    lab_page.button("Step").click()
    expect(step).to_have_attribute("data-step", "1")
    expect(lab_page.test_id("cause")).to_contain_text("IDLE → ACTIVE_PREFILL")
    expect(lab_page.page.locator(".nsl-state.nsl-lit")).to_have_attribute(
        "data-state", "ACTIVE_PREFILL"
    )
    expect(lab_page.page.locator(".nsl-arrow.nsl-lit")).to_have_attribute(
        "data-arrow", "IDLE>ACTIVE_PREFILL"
    )
    expect(column(lab_page, "prefill").locator(".nsl-chip")).to_have_count(1)
    expect(lab_page.test_id("hold")).to_contain_text("is not admitted")

    lab_page.button("Next change").click()
    expect(lab_page.test_id("cause")).to_contain_text("→")
    lab_page.page.get_by_label("Speed").select_option("30 steps/s")
    lab_page.button("Play").click()
    expect(lab_page.button("Pause")).to_be_visible()
    expect(lab_page.test_id("text").locator("li").first).to_be_visible()
    lab_page.button("Pause").click()
    expect(lab_page.button("Play")).to_be_visible()
    stopped_at = step.get_attribute("data-step")
    lab_page.page.wait_for_timeout(300)
    assert step.get_attribute("data-step") == stopped_at
    assert int(stopped_at) > 1

    lab_page.page.get_by_label("Kind of prompt").select_option("length")
    lab_page.page.get_by_label("Prompt tokens").fill("60")
    lab_page.button("Add").click()
    expect(message).to_contain_text("added r")
    added = message.inner_text().removeprefix("added ")
    expect(lab_page.test_id("board")).to_contain_text(added)
    lab_page.page.get_by_label("Request to abort").select_option(added)
    lab_page.button("Abort").click()
    expect(message).to_have_text(f"aborted {added}")
    expect(column(lab_page, "aborted")).to_contain_text(added)

    lab_page.button("Reset").click()
    expect(step).to_have_attribute("data-step", "0", timeout=60_000)
    expect(column(lab_page, "aborted").locator(".nsl-chip")).to_have_count(0)
    lab_page.button("Step").click()
    expect(step).to_have_attribute("data-step", "1")


def test_every_button_over_a_live_engine(jupyter, new_page):
    lab_page = new_page(height=1600)  # what is out of sight is not drawn
    lab_page.open(jupyter.write_notebook("live.ipynb", REAL, "dashboard"))
    lab_page.run_all()
    drive(lab_page)


def test_the_quickstart(jupyter, new_page):
    notebook = ROOT / "notebooks" / "00_quickstart.ipynb"
    if not notebook.exists() or "Dashboard(" not in notebook.read_text(encoding="utf-8"):
        pytest.skip("the quickstart has no dashboard yet")
    shutil.copy(notebook, jupyter.root)
    lab_page = new_page(height=2400)
    lab_page.open(notebook.name)
    lab_page.run_all()
    drive(lab_page)


def test_every_button_over_a_fake_lab(jupyter, new_page):
    lab_page = new_page(width=1024, height=2400)  # with the side bar: one narrow column
    lab_page.open(jupyter.write_notebook("fake.ipynb", FAKE, FILL, "dashboard"), sidebar=True)
    lab_page.run_all()
    drive(lab_page)


FILL = """
def fill(lab):
    for length in (40, 300, 20, 100, 64, 30):
        lab.add([7] * length, max_tokens=12)
lab = FakeLab()
fill(lab)
dashboard = Dashboard(lab, refill=fill)
"""


def test_it_appears_beside_a_lab_that_is_up(jupyter, new_page):
    lab_page = new_page()
    cells = (FAKE, "dashboard = Dashboard(lab)\ndashboard")
    lab_page.open(jupyter.write_notebook("appear.ipynb", *cells))
    lab_page.run_cell(0)
    start = time.monotonic()
    lab_page.run_cell(1)
    lab_page.page.locator(".nsl-chip").first.wait_for()
    seconds = time.monotonic() - start
    print(f"dashboard in the page after {seconds:.2f} s")


def test_looking_back_while_live(jupyter, new_page):
    lab_page = new_page()
    cells = (FAKE, "dashboard = Dashboard(lab)\ndashboard", "for _ in range(9): lab.step()")
    lab_page.open(jupyter.write_notebook("back.ipynb", *cells))
    lab_page.run_all()
    step = lab_page.test_id("where")
    expect(step).to_have_attribute("data-step", "9")  # a cell's steps are followed
    scrub = lab_page.page.get_by_label("Step shown")
    scrub.fill("2")
    expect(step).to_have_attribute("data-step", "2")
    expect(lab_page.test_id("board")).to_have_attribute("data-step", "2")
    expect(lab_page.page.get_by_text("live, looking back")).to_be_visible()
    lab_page.button("Step").click()
    expect(step).to_have_attribute("data-step", "3")
    expect(step).to_have_attribute("data-total", "9")
    lab_page.button("To the end").click()
    expect(step).to_have_attribute("data-step", "9")


MEANWHILE = """
before = len(lab.trace)
lab.add([7], request_id="cell")
lab.step()
assert len(lab.trace) == before + 1
"""


def test_a_cell_can_use_the_lab_while_it_plays(jupyter, new_page):
    lab_page = new_page()
    cells = (
        FAKE + "for _ in range(40): lab.add([7] * 50, max_tokens=50)",
        "dashboard = Dashboard(lab)\ndashboard",
        MEANWHILE,
    )
    lab_page.open(jupyter.write_notebook("busy.ipynb", *cells))
    lab_page.run_cell(0)
    lab_page.run_cell(1)
    lab_page.button("Play").click()
    step = lab_page.test_id("where")
    expect(step).not_to_have_attribute("data-step", "0")
    lab_page.run_cell(2)
    assert lab_page.cell_errors() == []
    seen = int(step.get_attribute("data-step"))
    lab_page.page.wait_for_function(
        "seen => +document.querySelector('[data-testid=where]').dataset.step > seen + 2", arg=seen
    )
    lab_page.button("Pause").click()
    expect(lab_page.button("Play")).to_be_visible()


def test_errors_are_shown_as_text(jupyter, new_page):
    lab_page = new_page()
    hostile = "<img src=x onerror='window.hacked=1'>"
    cells = (
        FAKE,
        "Dashboard(lab)",
        f"def fail(): raise RuntimeError({hostile!r})\nlab.step = fail",
    )
    lab_page.open(jupyter.write_notebook("error.ipynb", *cells))
    lab_page.run_all()
    lab_page.button("Step").click()
    expect(lab_page.page.get_by_role("alert")).to_have_text(f"RuntimeError: {hostile}")
    assert lab_page.page.evaluate("window.hacked") is None


def test_a_hostile_name_is_text_in_every_view(jupyter, new_page):
    lab_page = new_page(height=3000)
    # A dashboard's views, each with its table open; then the same without a browser's script.
    cells = (FAKE, "dashboard = Dashboard(lab)\ndashboard", "lab.run()\ndashboard.snapshot()")
    lab_page.open(jupyter.write_notebook("hostile.ipynb", *cells))
    lab_page.run_all()
    page = lab_page.page
    for table in page.locator(".nsl-data summary").all():
        table.click()
    dashboard = page.locator(".nsl-dashboard")
    for position in range(19):
        page.get_by_label("Step shown").fill(str(position))
        expect(lab_page.test_id("board")).to_have_attribute("data-step", str(position))
        assert dashboard.locator("img, script, a").count() == 0
    for name in ("Queues", "KV cache", "Generated text", "Timeline"):
        card = page.get_by_role("group", name=name, exact=True)
        page.get_by_label("Step shown").fill("15")
        expect(card).to_contain_text("<img src=x onerror=")
    assert page.evaluate("window.hacked") is None
    assert "\u202e" not in page.locator(".jp-Notebook").inner_text()


def test_screenshots_and_nothing_is_clipped(jupyter, new_page):
    lab_page = new_page(height=2400)
    cells = (FAKE, "dashboard = Dashboard(lab)\nfor _ in range(12): lab.step()\ndashboard")
    lab_page.open(jupyter.write_notebook("look.ipynb", *cells))
    lab_page.run_all()
    page = lab_page.page
    page.locator(".nsl-chip").first.wait_for()
    SCREENSHOTS.mkdir(exist_ok=True)
    for width in (1280, 1024):
        page.set_viewport_size({"width": width, "height": 2400})
        for theme in ("Light", "Dark"):
            lab_page.set_theme(f"JupyterLab {theme}")
            shot = f"{width}_{theme.lower()}.png"
            page.locator(".nsl-dashboard").screenshot(path=SCREENSHOTS / f"dashboard_{shot}")
            for name in VIEW_NAMES:
                card = page.get_by_role("group", name=name, exact=True).first
                card.screenshot(path=SCREENSHOTS / f"{name.lower().replace(' ', '_')}_{shot}")
            assert check(page, "findClipped") == []
            assert check(page, "findOverlaps") == []
    lab_page.set_theme("JupyterLab Light")


# Ours only: JupyterLab has some of its own that come and go.
ANIMATED = """document.getAnimations().map(a => a.effect.target)
    .filter(e => e.closest(".nsl-dashboard")).map(e => e.className)"""
FOCUSED = "(e => e.innerText.split('\\n')[0] || e.ariaLabel)(document.activeElement)"


def test_keyboard_and_names(jupyter, new_page):
    lab_page = new_page(reduced_motion="reduce")
    cells = (FAKE, "dashboard = Dashboard(lab)\ndashboard")
    lab_page.open(jupyter.write_notebook("keys.ipynb", *cells))
    lab_page.run_all()
    page = lab_page.page
    lab_page.button("Step").click()  # or there is nothing to scrub through
    expect(lab_page.test_id("where")).to_have_attribute("data-step", "1")
    lab_page.button("Play").focus()
    order = []
    for _ in range(6):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert order[:2] == ["Step", "Next change"]
    assert "Step shown" in order
    lab_page.button("Step").focus()
    page.keyboard.press("Enter")
    expect(lab_page.test_id("where")).to_have_attribute("data-step", "2")
    assert page.evaluate("document.activeElement.innerText") == "Step"  # the focus stays
    assert page.evaluate(ANIMATED) == []
    tree = page.locator(".nsl-dashboard").aria_snapshot()
    for name in (
        'group "Controls"',
        'group "Queues"',
        'slider "Step shown"',
        'img "State after step 2',
    ):
        assert name in tree, tree
    assert 'img "Timeline of 6 requests' in tree


def test_a_reload_finds_everything_again(jupyter, new_page):
    lab_page = new_page()
    cells = (FAKE, "dashboard = Dashboard(lab)\ndashboard", "for _ in range(9): lab.step()")
    lab_page.open(jupyter.write_notebook("reload.ipynb", *cells))
    lab_page.run_all()
    lab_page.command("docmanager:save")
    lab_page.page.reload()
    lab_page.page.locator(".nsl-chip").first.wait_for(timeout=60_000)
    expect(lab_page.page.locator(".nsl-timeline")).to_have_attribute("data-rows", "9")
    lab_page.button("Step").click()
    expect(lab_page.test_id("where")).to_have_attribute("data-step", "10")


def test_without_a_kernel_there_is_a_picture(jupyter, new_page):
    lab = make_lab()
    lab.run()
    bundle = Dashboard(lab)._repr_mimebundle_()
    bundle.pop("application/vnd.jupyter.widget-view+json")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("dashboard")])
    notebook.cells[0].outputs = [
        nbformat.v4.new_output("execute_result", data=bundle, execution_count=1)
    ]
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, jupyter.root / "stored.ipynb")
    lab_page = new_page()
    lab_page.open("stored.ipynb")
    pictures = lab_page.page.locator(".jp-OutputArea-output img")
    expect(pictures).to_have_count(5)
    for picture in pictures.all():
        assert picture.evaluate("image => image.naturalWidth") > 300
        assert picture.get_attribute("alt")
    lab_page.page.screenshot(path=SCREENSHOTS / "without_kernel.png")


MANY = """
from dataclasses import replace
from tests.widgets.fake_lab import *
from neuron_sched_lab.widgets import *
config = replace(CONFIG, max_num_seqs=64, kv_blocks_total=1024, num_seqs_buckets=(16, 64))
lab = FakeLab(config, with_inputs=True)
for n in range(200):
    lab.add([7] * (20 + n % 100), max_tokens=400)
dashboard = Dashboard(lab)
dashboard
"""


def test_the_page_keeps_up_with_200_requests(jupyter, new_page):
    lab_page = new_page()
    lab_page.open(jupyter.write_notebook("many.ipynb", MANY))
    lab_page.run_cell(0)
    page = lab_page.page
    page.locator(".nsl-chip").first.wait_for()
    check(page, "watchSteps")
    page.get_by_label("Speed").select_option("full speed")
    start = time.monotonic()
    lab_page.button("Play").click()
    page.wait_for_function(
        "() => +document.querySelector('[data-testid=where]').dataset.step >= 500", timeout=60_000
    )
    played = time.monotonic() - start
    lab_page.button("Pause").click()
    expect(lab_page.button("Play")).to_be_visible()
    stopped = time.monotonic() - start - played
    seen = page.evaluate("window.seen")
    steps_a_second = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) * 1000
    draws_a_second = len(seen) / (seen[-1][0] - seen[0][0]) * 1000
    nodes = page.locator(".nsl-dashboard *").count()
    print(
        f"500 steps in {played:.1f} s: {steps_a_second:.0f} steps/s and {draws_a_second:.0f} "
        f"draws/s reach the DOM; paused after {stopped:.2f} s; {nodes} nodes"
    )
    assert nodes < 3000
    page.screenshot(path=SCREENSHOTS / "200_requests.png")


def test_memory_of_the_page_does_not_grow_with_redraws(jupyter, new_page):
    lab_page = new_page()
    lab_page.open(jupyter.write_notebook("memory.ipynb", MANY, SCRUB, SCRUB))
    lab_page.run_cell(0)
    lab_page.page.locator(".nsl-chip").first.wait_for()
    sizes = []
    for cell in (1, 2):
        lab_page.run_cell(cell)
        assert lab_page.cell_errors() == []
        sizes.append(heap_size(lab_page.page))
    print(f"heap after 150 and 300 redraws: {sizes[0] / 1e6:.1f}, {sizes[1] / 1e6:.1f} MB")
    assert sizes[1] - sizes[0] < 5e6


SCRUB = """
import asyncio
while len(lab.trace) < 150: lab.step()
for n in range(150):
    dashboard.player.seek(n)
    await asyncio.sleep(0.035)
"""


def heap_size(page):
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"]
