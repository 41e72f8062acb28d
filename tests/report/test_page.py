"""The page of a report, also in a real browser: content, sizes, accessibility, and no network."""

import contextlib
import functools
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.evaluation.score import Outcomes, from_hits
from fairseq_lxsr.report import measure_sample, write_report
from fairseq_lxsr.report.training_log import Curves

SIZES = {"phone": (390, 844), "desk": (1280, 900)}
RNG = np.random.default_rng(0)
# plotly would draw it as a link.
LINK = '<a href="https://example.org">fr</a>'
NASTY = "<script>alert('x')</script> & \"ü\""


# Cached, because the map takes seconds.
@functools.cache
def contents():
    source = [NASTY, *(f"sentence number {i}" for i in range(59))]
    target = [f"phrase {i}" for i in range(60)]
    left = RNG.standard_normal((60, 16))
    right = left + 0.9 * RNG.standard_normal((60, 16))
    sample = measure_sample((source, target), (left, right), ("en", LINK), 3400)
    curves = Curves(
        "train.log", {"loss": {10: 9.0, 20: 5.0, 30: 4.5}}, {"loss": {20: 4.0, 30: 3.0}}
    )
    scores = []
    for model in ("abc", "def"):
        settings = {"metric": "nn-cosine", "queries": 4, "model": model}
        scores.append(from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 1, 0, 1])}, settings))
    scores.append(replace(scores[0], task=NASTY))
    return [curves], scores, [sample]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, f"A run {NASTY}", *contents(), {"abc": f"static {NASTY}"}, "def")
    return path


def test_the_page_loads_nothing_and_escapes_text(page):
    text = page.read_text(encoding="utf-8")
    head = text[: text.index("<script>")] + text[text.index("</script>") :]
    assert "src=" not in head
    assert "@import" not in head
    assert NASTY not in text


class Structure(HTMLParser):
    """The structure that screen readers use: tags, labels of charts, and faults of tables."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.faults: list[str] = []
        self.labels: list[str] = []
        self.parent: dict[str, str | None] = {}
        # Parsing the library before the text would take seconds.
        self.feed(text[text.index("<main>") :])

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        is_scrollable = self.parent.get("role") == "region" and self.parent.get("tabindex") == "0"
        if tag == "table" and not is_scrollable:
            self.faults.append("a table that the keyboard does not scroll")
        if tag == "th" and values.get("scope") not in ("row", "col"):
            self.faults.append("a header without scope")
        if tag == "div" and "data-label" in values:
            self.labels.append(values["data-label"])
        self.parent = values


def test_sections_without_content_are_omitted(tmp_path):
    logs, scores, _ = contents()
    write_report(tmp_path / "a.html", "a", logs, [], [])
    assert "<h2>Scores" not in (tmp_path / "a.html").read_text()
    write_report(tmp_path / "b.html", "b", [], scores, [])
    assert "<figure" not in (tmp_path / "b.html").read_text()
    with pytest.raises(InputError, match="nothing"):
        write_report(tmp_path / "c.html", "c", [], [], [])
    assert not (tmp_path / "c.html").exists()


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = lxsr_here("report", tmp_path, check=False)
    refused(done, "plotly", install_command("report"))


def test_the_page_has_landmarks_an_accessible_table_and_captions(page):
    text = page.read_text(encoding="utf-8")
    structure = Structure(text)
    assert structure.faults == []
    assert structure.tags.count("main") == 1
    assert structure.tags.count("h1") == 1
    assert structure.tags.count("table") == 1
    assert structure.tags.count("figcaption") == 2
    assert len(structure.labels) == 2
    for words in (
        "Loss. training: from 9 to 4.5. validation: from 4 to 3.",
        "loss (logarithmic scale)",
        "Half of the pairs are at most",
        "Map of 60 of 3,400 sentence pairs, en and &lt;a",
        "trained model (def)",
        "<td>+0.0 (+0.0 to +0.0)</td>",
        "xsr|metric:nn-cosine|queries:4|model:abc",
    ):
        assert words in text, words


@contextlib.contextmanager
def opened(browser, page, width=1280, height=900):
    """A tab with the page, the messages of its console, and the addresses that it requests."""
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(10_000)
    messages = []
    outside = []
    context.on("console", lambda message: messages.append(message.text))
    context.on("weberror", lambda error: messages.append(str(error.error)))
    context.on("dialog", lambda dialog: messages.append("a script in the text ran"))
    context.on("request", lambda request: outside.append(request.url))
    context.on("page", lambda window: outside.append(f"window {window.url}"))
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_function("document.querySelectorAll('.main-svg[role=img]').length >= 2")
    assert outside == ["window about:blank", page.as_uri()]
    outside.clear()
    yield tab, messages, outside
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_drawn_in_a_browser(browser, page, size):
    width, height = SIZES[size]
    with opened(browser, page, width, height) as (tab, messages, outside):
        text = tab.inner_text("body")
        width_of = "nodes => nodes.map(node => node.getBoundingClientRect().width)"
        chart_widths = tab.locator(".js-plotly-plot").evaluate_all(width_of)
        dots = tab.locator(".scatterlayer .point").count()
        page_width = tab.evaluate("document.documentElement.scrollWidth")
        # `force`, because layers of plotly above the points get the pointer.
        tab.locator(".scatterlayer .point").nth(70).hover(force=True)
        tab.wait_for_selector(".hoverlayer .hovertext")
        hovered = tab.text_content(".hoverlayer .hovertext")
        gaps = tab.locator(".js-plotly-plot").evaluate_all(
            """plots => plots.map(plot => plot.querySelector(".nsewdrag").getBoundingClientRect().top
                - plot.querySelector(".modebar").getBoundingClientRect().bottom)"""
        )
    # No toolbar covers the curves.
    assert len(gaps) == 2
    assert min(gaps) >= 0
    assert messages == outside == []
    for expected in (
        "A run <script>",
        "Loss",
        "xsr en->fr",
        "75.0",
        "model:abc",
    ):
        assert expected in text
    assert len(chart_widths) == 2
    for chart_width in chart_widths:
        assert 0.5 * min(width, 1000) < chart_width <= width
    # The map has a point for each of the 60 sentences of both languages.
    assert dots >= 120
    assert "sentence number" in hovered or "phrase" in hovered or NASTY[:8] in hovered
    # Nothing makes the page wider than the window.
    assert page_width <= width


@pytest.mark.slow
def test_no_button_and_no_link_leaves_the_page(browser, page):
    """All buttons are pressed, also new ones. A toolbar of plotly can send a chart to its makers."""
    links = "[...document.querySelectorAll('a')].filter(a => a.href || a.href.baseVal).length"
    with opened(browser, page) as (tab, messages, outside):
        assert tab.evaluate(links) == 0
        pressed: list[str] = []
        while buttons := tab.query_selector_all("button:not(.pressed)"):
            # A dialog comes last, and hides the other buttons.
            button = buttons[-1]
            button.evaluate("node => node.classList.add('pressed')")
            pressed.append(button.get_attribute("aria-label") or button.inner_text())
            button.click(force=True)
            assert len(pressed) < 100
        tab.wait_for_timeout(300)
    assert pressed.count("Download plot as a PNG") == 2
    assert pressed.count("Reset axes") == 2
    for url in outside:
        assert url.startswith(("data:", "blob:"))
    assert messages == []


@pytest.mark.slow
def test_the_browser_forbids_the_network_and_other_scripts(browser, page):
    with opened(browser, page) as (tab, messages, _):
        tab.evaluate(
            """() => {
              const picture = new Image(); picture.src = "http://127.0.0.1:9/a.png";
              const script = document.createElement("script"); script.textContent = "window.ran = 1";
              document.body.append(picture, script);
              return fetch("http://127.0.0.1:9/b").catch(() => null);
            }"""
        )
        assert tab.evaluate("window.ran") is None
    forbidden = [message.lower() for message in messages if "Content Security Policy" in message]
    for kind in ("loading the image", "inline script", "connecting to"):
        assert any(kind in message for message in forbidden), kind


@pytest.mark.slow
def test_charts_and_buttons_have_labels_and_the_keyboard_reaches_the_table(browser, page):
    with opened(browser, page) as (tab, _, _):
        labels = tab.locator("svg[role=img]").evaluate_all(
            "nodes => nodes.map(node => node.ariaLabel)"
        )
        hidden = tab.locator(".main-svg:not([role=img])").evaluate_all(
            "nodes => nodes.map(node => node.ariaHidden)"
        )
        nameless = tab.locator("button").evaluate_all(
            "nodes => nodes.filter(node => !node.ariaLabel).length"
        )
        tab.keyboard.press("Tab")
        reached = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert len(labels) == 2
    for label in labels:
        assert ". " in label
    assert set(hidden) == {"true"}
    assert nameless == 0
    assert reached == "Scores"
