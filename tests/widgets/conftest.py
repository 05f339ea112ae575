"""One JupyterLab and one Chromium for all browser tests; a fresh page for each."""

from pathlib import Path

import pytest

from tests.widgets.jupyter import CHROMIUM, CHROMIUM_ARGS, LabPage, start_jupyter

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "screenshots"


# Of a module, not of the session: while Playwright runs, its event loop counts as this thread's.
@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}; install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=CHROMIUM_ARGS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def jupyter(chromium, tmp_path_factory):  # after chromium: without one, no server
    # The notebooks import tests.widgets.fake_lab.
    with start_jupyter(tmp_path_factory.mktemp("jupyter"), PYTHONPATH=str(ROOT)) as jupyter:
        yield jupyter


@pytest.fixture
def new_page(chromium, jupyter):
    """Make a page; after the test: no foreign address, no error, no dialog, no kernel left."""
    pages = []

    def make(width=1280, height=800, **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        pages.append(LabPage(context.new_page(), jupyter))
        return pages[-1]

    yield make
    SCREENSHOTS.mkdir(exist_ok=True)
    for number, lab_page in enumerate(pages):
        lab_page.page.screenshot(path=SCREENSHOTS / f"last_{number}.png")
        dialogs = lab_page.page.locator(".jp-Dialog").count()
        lab_page.page.context.close()
        assert (lab_page.foreign, lab_page.errors, dialogs) == ([], [], 0)
    jupyter.shut_down_kernels()
