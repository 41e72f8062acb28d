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
# A browser would run it if the page did not escape it.
SCRIPT = "<script>alert('x')</script> & \"ü\""
# The map shows these pairs of a longer text.
NUM_MAP_PAIRS = 60
NUM_PAIRS_OF_TEXT = 3400


# Cached, because the map takes seconds.
@functools.cache
def contents():
    """The curves of one log, the scores of two models, and the map of a text.

    The first sentence, the name of a task and the name of a language have HTML in them.
    """
    source = [SCRIPT, *(f"sentence number {i}" for i in range(1, NUM_MAP_PAIRS))]
    target = [f"phrase {i}" for i in range(NUM_MAP_PAIRS)]
    left = RNG.standard_normal((NUM_MAP_PAIRS, 16))
    right = left + 0.9 * RNG.standard_normal((NUM_MAP_PAIRS, 16))
    sample = measure_sample((source, target), (left, right), ("en", LINK), NUM_PAIRS_OF_TEXT)
    curves = Curves(
        "train.log", {"loss": {10: 9.0, 20: 5.0, 30: 4.5}}, {"loss": {20: 4.0, 30: 3.0}}
    )
    scores = []
    for model in ("abc", "def"):
        settings = {"metric": "nn-cosine", "queries": 4, "model": model}
        # 75 %.
        scores.append(from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 1, 0, 1])}, settings))
    scores.append(replace(scores[0], task=SCRIPT))
    return [curves], scores, [sample]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, f"A run {SCRIPT}", *contents(), {"abc": f"static {SCRIPT}"}, "def")
    return path


def test_the_page_loads_no_other_file(page):
    text = page.read_text(encoding="utf-8")

    # The first script is the library of the charts, which has such words in its own text.
    before_library, _, rest = text.partition("<script>")
    _, _, after_library = rest.partition("</script>")
    for part in (before_library, after_library):
        assert "src=" not in part
        assert "@import" not in part


def test_the_page_escapes_text(page):
    assert SCRIPT not in page.read_text(encoding="utf-8")


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
            self.faults.append("a table that cannot be scrolled by keyboard")
        if tag == "th" and values.get("scope") not in ("row", "col"):
            self.faults.append("a header without scope")
        if tag == "div" and "data-label" in values:
            self.labels.append(values["data-label"])
        self.parent = values


def test_a_report_without_scores_has_no_section_of_scores(tmp_path):
    curves, _, _ = contents()

    write_report(tmp_path / "report.html", "title", curves, [], [])

    assert "<h2>Scores" not in (tmp_path / "report.html").read_text()


def test_a_report_without_curves_and_texts_has_no_charts(tmp_path):
    _, scores, _ = contents()

    write_report(tmp_path / "report.html", "title", [], scores, [])

    assert "<figure" not in (tmp_path / "report.html").read_text()


def test_a_report_of_nothing_is_refused_and_not_written(tmp_path):
    with pytest.raises(InputError, match="nothing"):
        write_report(tmp_path / "report.html", "title", [], [], [])

    assert not (tmp_path / "report.html").exists()


def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    # No library is installed.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    done = lxsr_here("report", tmp_path, check=False)

    refused(done, "plotly", install_command("report"))


def test_the_page_has_landmarks_an_accessible_table_and_captions(page):
    structure = Structure(page.read_text(encoding="utf-8"))

    assert structure.faults == []
    assert structure.tags.count("main") == 1
    assert structure.tags.count("h1") == 1
    assert structure.tags.count("table") == 1
    # The charts are the curves of the log and the map.
    assert structure.tags.count("figcaption") == 2
    assert len(structure.labels) == 2


def test_the_page_says_in_words_what_its_charts_and_its_table_show(page):
    text = page.read_text(encoding="utf-8")

    for words in (
        "Loss. training: from 9 to 4.5. validation: from 4 to 3.",
        "loss (logarithmic scale)",
        "Half of the pairs are at most",
        "Map of 60 of 3,400 sentence pairs, en and &lt;a",
        "trained model (def)",
        # Both models have the same outcomes.
        "<td>+0.0 (+0.0 to +0.0)</td>",
        "xsr|metric:nn-cosine|queries:4|model:abc",
    ):
        assert words in text, words


@contextlib.contextmanager
def opened(browser, page, width=1280, height=900):
    """A tab with the page, the messages of its console, and the addresses that it requests.

    The addresses are those after the page was loaded; a window that opens counts as one.
    """
    context = browser.new_context(viewport={"width": width, "height": height})
    # A busy machine takes long to draw the page.
    context.set_default_timeout(60_000)
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


@pytest.fixture(scope="module", params=SIZES)
def opened_once(request, browser, page):
    """A tab in a window of each size, with its messages and requests as in `opened`.

    Opening takes seconds, so that all tests of a size share a tab.
    """
    with opened(browser, page, *SIZES[request.param]) as (tab, messages, outside):
        yield tab, messages, outside


@pytest.mark.slow
def test_a_browser_shows_the_text_without_errors_and_without_requests(opened_once):
    tab, messages, outside = opened_once

    text = tab.inner_text("body")

    for expected in (
        "A run <script>",
        "Loss",
        "xsr en->fr",
        "75.0",
        "model:abc",
    ):
        assert expected in text
    assert messages == []
    assert outside == []


@pytest.mark.slow
def test_charts_fill_the_window_and_nothing_is_wider(opened_once):
    tab, _, _ = opened_once
    width = tab.viewport_size["width"]

    chart_widths = tab.locator(".js-plotly-plot").evaluate_all(
        "nodes => nodes.map(node => node.getBoundingClientRect().width)"
    )
    page_width = tab.evaluate("document.documentElement.scrollWidth")

    assert page_width <= width
    assert len(chart_widths) == 2
    # The text of the page is at most 1,000 pixels wide.
    text_width = min(width, 1000)
    for chart_width in chart_widths:
        assert 0.5 * text_width < chart_width <= width


@pytest.mark.slow
def test_the_map_has_a_point_for_each_sentence_of_both_languages(opened_once):
    tab, _, _ = opened_once

    num_points = tab.locator(".scatterlayer .point").count()

    # The curves have a few points too.
    assert num_points >= 2 * NUM_MAP_PAIRS


@pytest.mark.slow
def test_the_map_shows_the_sentence_of_the_point_under_the_pointer(opened_once):
    tab, messages, outside = opened_once
    # Any point of the map will do.
    point = tab.locator(".scatterlayer .point").nth(NUM_MAP_PAIRS + 10)

    # `force`, because layers of plotly above the points get the pointer.
    point.hover(force=True)
    tab.wait_for_selector(".hoverlayer .hovertext")
    hovered_text = tab.text_content(".hoverlayer .hovertext")

    assert messages == []
    assert outside == []
    beginning_of_first_sentence = SCRIPT[: len("<script>")]
    sentences = ("sentence number", "phrase", beginning_of_first_sentence)
    assert any(sentence in hovered_text for sentence in sentences)


@pytest.mark.slow
def test_no_toolbar_covers_a_chart(opened_once):
    tab, _, _ = opened_once

    # Pixels from the bottom of the toolbar to the top of the drawing.
    gaps = tab.locator(".js-plotly-plot").evaluate_all(
        """plots => plots.map(plot => plot.querySelector(".nsewdrag").getBoundingClientRect().top
            - plot.querySelector(".modebar").getBoundingClientRect().bottom)"""
    )

    assert len(gaps) == 2
    assert min(gaps) >= 0


@pytest.mark.slow
def test_the_page_has_no_link(browser, page):
    links = "[...document.querySelectorAll('a')].filter(a => a.href || a.href.baseVal).length"
    with opened(browser, page) as (tab, _, _):
        num_links = tab.evaluate(links)

    assert num_links == 0


@pytest.mark.slow
def test_no_button_requests_anything_outside_the_page(browser, page):
    """All buttons are pressed, also new ones. A toolbar of plotly can send a chart to its makers."""
    pressed: list[str] = []
    with opened(browser, page) as (tab, messages, outside):
        while buttons := tab.query_selector_all("button:not(.pressed)"):
            # A dialog comes last, and hides the other buttons.
            button = buttons[-1]
            button.evaluate("node => node.classList.add('pressed')")
            pressed.append(button.get_attribute("aria-label") or button.inner_text())
            button.click(force=True)
            # Otherwise, each button would open a new one.
            assert len(pressed) < 100
        # Time for requests.
        tab.wait_for_timeout(300)

    # Both charts have these buttons.
    assert pressed.count("Download plot as a PNG") == 2
    assert pressed.count("Reset axes") == 2
    for url in outside:
        assert url.startswith(("data:", "blob:"))
    assert messages == []


@pytest.mark.slow
def test_the_browser_forbids_the_network_and_other_scripts(browser, page):
    with opened(browser, page) as (tab, messages, _):
        # A picture, a script and a request, as HTML in a text could add them.
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
def test_charts_and_buttons_have_labels(browser, page):
    with opened(browser, page) as (tab, _, _):
        chart_labels = tab.locator("svg[role=img]").evaluate_all(
            "nodes => nodes.map(node => node.ariaLabel)"
        )
        num_buttons_without_label = tab.locator("button").evaluate_all(
            "nodes => nodes.filter(node => !node.ariaLabel).length"
        )

    assert len(chart_labels) == 2
    for label in chart_labels:
        # Several sentences.
        assert ". " in label
    assert num_buttons_without_label == 0


@pytest.mark.slow
def test_screen_readers_skip_the_layers_of_charts_that_have_no_label(browser, page):
    with opened(browser, page) as (tab, _, _):
        are_hidden = tab.locator(".main-svg:not([role=img])").evaluate_all(
            "nodes => nodes.map(node => node.ariaHidden)"
        )

    assert set(are_hidden) == {"true"}


@pytest.mark.slow
def test_the_tab_key_reaches_the_table_first(browser, page):
    with opened(browser, page) as (tab, _, _):
        tab.keyboard.press("Tab")
        label = tab.evaluate("document.activeElement.getAttribute('aria-label')")

    assert label == "Scores"
