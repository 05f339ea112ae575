"""Reports: one file that opens offline, in which users' text is text."""

import re
from html import unescape
from io import BytesIO
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from PIL import Image

from neuron_sched_lab.reports import experiment_page
from neuron_sched_lab.reports.chart import BAR, CURVE, Chart, Series
from neuron_sched_lab.reports.chart_image import draw
from neuron_sched_lab.reports.experiment_page import Experiment
from neuron_sched_lab.reports.tables import format_cell, table_to_html, table_to_text

EVIL = '<script>alert("1")</script> $x^2$ </style>\n\x1b[31m'


def experiment(name="mine", kind=BAR):
    return Experiment(
        question=f"Is {name} better?",
        answer=f"{name} is.",
        table=pd.DataFrame({"policy": [name, "other"], "TTFT": [0.5, 1234.5]}),
        chart=Chart(
            title=f"{name}, title",
            x_title=f"{name}, x",
            y_title=f"{name}, y",
            series=(
                Series(name, (name, "b") if kind == BAR else (1, 2), (0.5, 1), (name, "1")),
                Series("_other", ("a", "b") if kind == BAR else (1, 2), (1, 0)),
            ),
            kind=kind,
            percent=True,
        ),
        alt_text=f"Bars: {name}.",
        notes=(f"{name} noted",),
    )


def test_html_needs_no_network(tmp_path):
    path = tmp_path / "r.html"
    experiment().save(path)
    page = path.read_text(encoding="utf-8")
    head = page.partition("<script>")[0] + page.rpartition("</script>")[2]
    assert "http" not in head.replace("http-equiv", "")
    assert not re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="http', page)
    assert "default-src 'none'" in page
    assert page.count("Plotly.newPlot(") >= 1
    assert '<figure role="img" aria-label="Bars: mine.">' in page
    assert "<td>1,234</td>" in page or "<td>1,235</td>" in page
    assert "<p>Note: mine noted</p>" in page


@pytest.mark.parametrize("kind", [BAR, CURVE])
def test_users_text_is_never_markup(kind):
    page = experiment_page.to_html([experiment(EVIL, kind)])
    assert "alert(" in page
    assert "<script>alert" not in page
    assert "</style> " not in page.partition("</style>")[2]
    shown = experiment(EVIL, kind)._repr_mimebundle_()
    assert "<script" not in shown["text/html"]
    assert "\x1b" not in table_to_text(experiment(EVIL).table)
    figure = experiment(EVIL, kind).figure
    for text in (figure.layout.title.text, figure.data[0].name, figure.layout.xaxis.title.text):
        assert "<" not in text
        assert EVIL.partition("\n")[0] in unescape(text)
        assert "\x1b" not in text


def test_png_holds_the_plots_and_the_words(tmp_path):
    path = tmp_path / "r.PNG"
    experiment_page.write(path, [experiment(), experiment("second", CURVE)])
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (720, 840)
        assert image.text["Description"] == "Bars: mine. Bars: second."
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


@pytest.mark.parametrize("kind", [BAR, CURVE, "line"])
def test_pictures_are_the_same_each_time_and_hold_the_text(kind):
    chart = experiment(EVIL, kind).chart
    svg = draw([chart], "svg", EVIL)
    assert svg == draw([chart], "svg", EVIL)
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314  (our own)
    assert b"<script" not in svg
    assert b"$x^2$" in svg
    assert b"_other" in svg
    assert b"<dc:date>" not in svg
    with Image.open(BytesIO(draw([chart], "png", "words"))) as image:
        assert image.size == (720, 420)


def test_an_empty_chart_can_be_drawn():
    chart = Chart("nothing", "x", "y", (), kind=BAR)
    assert draw([chart], "svg", "")
    assert not chart.to_plotly().data


@pytest.mark.parametrize(
    ("name", "says"),
    [("r.pdf", "must end in .html or .png"), ("no/r.html", "does not exist; make it first")],
)
def test_bad_paths(tmp_path, name, says):
    with pytest.raises(ValueError, match=says):
        experiment().save(tmp_path / name)


def test_nothing_to_write(tmp_path):
    with pytest.raises(ValueError, match="no experiment to write"):
        experiment_page.write(tmp_path / "r.html", [])


def test_tables():
    table = pd.DataFrame(
        {"name": ["a", "<b>"], "n": [1, 20000], "x": [0.123456, None], "is": [True, False]}
    )
    assert table_to_text(table) == (
        "name       n       x   is\n"
        "a          1  0.1235  yes\n"
        "<b>   20,000       -   no"
    )  # fmt: skip
    assert "<td>&lt;b&gt;</td>" in table_to_html(table)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (float("nan"), "-"), (0, "0"), (0.0, "0"), (1e-5, "1e-05"),
        (1234.5678, "1,235"), (12345, "12,345"), (True, "yes"), ("a\nb", "a\\x0ab"),
        ("x" * 100, "x" * 59 + "…"),
    ],
)  # fmt: skip
def test_cells(value, text):
    assert format_cell(value) == text


def test_a_ratio_is_drawn_from_one_on_a_logarithmic_scale():
    chart = Chart("t", "x", "y", (Series("s", ("a", "b"), (50.0, 0.2)),), kind=BAR, ratio=True)
    figure = chart.to_plotly()
    assert figure.layout.yaxis.type == "log"
    (bars,) = figure.data
    assert [bars.base + y for y in bars.y] == pytest.approx([50, 0.2])
    assert draw([chart], "png", "")
