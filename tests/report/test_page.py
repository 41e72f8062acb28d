"""The page, also in a real browser: its content at two sizes, for every reader, without network."""

import contextlib
import functools
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import lxsr_here, refused

from fairseq_lxsr.errors import InputError, install_command
from fairseq_lxsr.evaluation.score import Outcomes, Score, from_hits
from fairseq_lxsr.evaluation.tables import CAUTION
from fairseq_lxsr.report import charts, measure_sample, write_report
from fairseq_lxsr.report.page import verdict
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
    sample = measure_sample(source, target, left, right, ("en", LINK), "0123456789ab-untrained")
    curves = Curves("train.log")
    for name, values in {"loss": (9.0, 5.0, 4.5), "accuracy": (0.1, 0.6, 0.9)}.items():
        curves.train[name] = dict(zip((10, 20, 30), values, strict=True))
    settings = {"metric": "nn-cosine", "queries": 4, "model": "abc"}
    tasks = [(task, settings) for task in ("en->fr", "fr->en")] + [
        ("en->fr", settings | {"model": "abc-untrained"})
    ]
    scores = [
        from_hits("xsr", task, {"P@1": Outcomes([1, 1, 0, 1])}, settings)
        for task, settings in tasks
    ]
    curve = {
        "threshold": [1.4, 1.2, 1.0],
        "precision": [100.0, 90.0, 60.0],
        "recall": [20.0, 70.0, 90.0],
    }
    scores.append(Score("bucc", "fr-en", {"F1": 78.8, "threshold": 1.07234}, settings, curve=curve))
    return [curves], scores, [sample]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, f"A run {NASTY}", *contents(), training_pairs=16892)
    return path


def test_one_file_that_asks_for_nothing(page):
    text = page.read_text(encoding="utf-8")
    head = text[: text.index("<script>")] + text[text.index("</script>") :]
    assert "src=" not in head
    assert "@import" not in head
    assert NASTY not in text


def test_it_begins_with_date_size_and_verdict_and_published_scores_come_last(page):
    text = page.read_text(encoding="utf-8")
    text = text[text.index("<main>") :]
    assert re.search(
        r"</h1>\s<p>\d{4}-\d\d-\d\d; 16,892 training pairs; 60 test pairs of en and &lt;a", text
    )
    percents = [row[3] for row in charts.length_chart(contents()[2][0]).rows]
    assert len(percents) == 2, "all have a few words, so a direction is one bucket"
    assert (
        f'class="verdict">For {sum(percents) / 2:.1f} % of the sentences, the translation is the nearest of 60 candidates.<'
        in text
    )
    titles = re.findall(r"<h2>([^<&]+)", text)
    assert titles[:2] == ["Training", "Scores"]
    assert titles[-1] == "Published scores"
    assert text.index(CAUTION) > text.index("Retrieval errors")


def test_verdict_of_scores_or_of_a_log_alone():
    logs, scores, _ = contents()
    assert verdict(logs, scores, []) == "xsr en → fr: P@1 is 75.0."
    assert verdict(logs, [], []) == "The loss went from 9 to 4.5 in 30 updates."
    assert verdict([Curves("train.log")], [], []) == "The logs contain no loss."


class Structure(HTMLParser):
    """What screen readers find: how often each landmark, and the tables without caption, scope or
    keyboard.
    """

    def __init__(self, text: str):
        super().__init__()
        self.seen: list[str] = []
        self.faults: list[str] = []
        self.labels: list[str] = []
        # The library before the text would take seconds.
        self.feed(text[text.index("<main>") :])

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.seen.append(tag)
        if tag == "table" and self.reached != {"role": "region", "tabindex": "0"}:
            self.faults.append("a table that the keyboard does not scroll")
        if tag == "thead" and self.seen[-2] != "caption":
            self.faults.append("a table without caption")
        if tag == "th" and given.get("scope") not in ("row", "col"):
            self.faults.append("a header without scope")
        if tag == "div" and "data-label" in given:
            self.labels.append(given["data-label"])
        self.reached = {name: given.get(name) for name in ("role", "tabindex")}


def test_what_there_is_nothing_of_is_left_out(tmp_path):
    logs, scores, _ = contents()
    write_report(tmp_path / "a.html", "a", logs, [], [])
    assert "<h2>Scores" not in (tmp_path / "a.html").read_text()
    write_report(tmp_path / "b.html", "b", [], scores, [])
    assert "<h2>Training" not in (tmp_path / "b.html").read_text()
    with pytest.raises(InputError, match="nothing"):
        write_report(tmp_path / "c.html", "c", [], [], [])
    assert not (tmp_path / "c.html").exists()
    write_report(tmp_path / "d.html", "d", [Curves("train.log", {"loss": {10: 9.0}})], [], [])
    assert Structure((tmp_path / "d.html").read_text()).seen.count("figure") == 1


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = lxsr_here("report", tmp_path, check=False)
    refused(done, "plotly", install_command("report"))


def test_landmarks_tables_and_text_beside_every_chart(page):
    text = page.read_text(encoding="utf-8")
    structure = Structure(text)
    seen = structure.seen
    assert structure.faults == []
    assert seen.count("main") == seen.count("h1") == 1
    # The tables of six charts, of scores and of errors.
    assert seen.count("table") >= 6 + 3
    assert len(structure.labels) == seen.count("figcaption") == seen.count("details") == 6
    for words in (
        *(
            "loss (training) goes from 9 to 4.5",
            "en → fr",
            "The mean cosine is",
            "half of the 60 pairs",
        ),
        # The map shows its text not only under the pointer.
        '<td class="text">phrase 59</td>',
        "loss (logarithmic scale)",
        "<caption>bucc, measured with the model trained (abc): threshold</caption>",
        *("<td>78.8</td></tr>", "<td>1.0723</td></tr>", "model untrained (0123456789ab)"),
        *("en → fr, trained (abc)", "en → fr, untrained (abc)", "fr → en, trained (abc)"),
    ):
        assert words in text


@contextlib.contextmanager
def opened(browser, page, width=1280, height=900):
    """A tab with the page, what its console says, and every address that it or a window of it asks
    for.
    """
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
    tab.wait_for_function("document.querySelectorAll('.main-svg[role=img]').length >= 6")
    assert outside == ["window about:blank", page.as_uri()]
    outside.clear()
    yield tab, messages, outside
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_in_a_browser(browser, page, size):
    width, height = SIZES[size]
    with opened(browser, page, width, height) as (tab, messages, outside):
        text = tab.inner_text("body")
        width_of = "nodes => nodes.map(node => node.getBoundingClientRect().width)"
        drawn = tab.locator(".js-plotly-plot").evaluate_all(width_of)
        bars, dots = (
            tab.locator(f"{layer} .point").count() for layer in (".bars", ".scatterlayer")
        )
        scroll = tab.evaluate("document.documentElement.scrollWidth")
        # plotly catches the pointer above the points
        tab.locator(".scatterlayer .point").nth(70).hover(force=True)
        tab.wait_for_selector(".hoverlayer .hovertext")
        hovered = tab.text_content(".hoverlayer .hovertext")
        above = tab.locator(".js-plotly-plot").evaluate_all(
            """plots => plots.map(plot => plot.querySelector(".nsewdrag").getBoundingClientRect().top
                - plot.querySelector(".modebar").getBoundingClientRect().bottom)"""
        )
    assert len(above) == 6
    assert min(above) >= 0, "a toolbar over the curves"
    assert messages == outside == []
    for expected in (
        "A run <script>",
        "Loss",
        "en → fr",
        "75.0",
        "model:abc",
        CAUTION,
        "Retrieval errors",
    ):
        assert expected in text
    assert len(drawn) == 6
    assert all(0.5 * min(width, 1000) < value <= width for value in drawn)
    assert bars >= 2
    assert dots >= 120
    assert "sentence number" in hovered or "phrase" in hovered or NASTY[:8] in hovered
    # Nothing makes the page wider than the window.
    assert scroll <= width


@pytest.mark.slow
def test_no_button_and_no_link_leaves_the_page(browser, page):
    """All are pressed, also those that only a press brings up; plotly's own toolbar can send a
    chart to its makers.
    """
    with opened(browser, page) as (tab, messages, outside):
        assert (
            tab.evaluate(
                "[...document.querySelectorAll('a')].filter(a => a.href || a.href.baseVal).length"
            )
            == 0
        )
        pressed: list[str] = []
        while buttons := tab.query_selector_all("button:not(.pressed), summary:not(.pressed)"):
            # A dialog comes last, and hides the other buttons.
            button = buttons[-1]
            button.evaluate("node => node.classList.add('pressed')")
            pressed.append(button.get_attribute("aria-label") or button.inner_text())
            button.click(force=True)
            assert len(pressed) < 100
        tab.wait_for_timeout(300)
    assert pressed.count("Download plot as a PNG") == 6
    assert pressed.count("Reset axes") == 6
    assert [url for url in outside if not url.startswith(("data:", "blob:"))] == []
    assert messages == []


@pytest.mark.slow
def test_the_browser_itself_forbids_the_network_and_foreign_scripts(browser, page):
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
def test_keyboard_and_labels_in_the_drawn_page(browser, page):
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
        tab.locator("summary").first.focus()
        tab.keyboard.press("Enter")
        tab.keyboard.press("Tab")
        reached = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert len(labels) == 6
    assert all(". " in label for label in labels)
    assert set(hidden) == {"true"}
    assert nameless == 0
    assert reached == "Loss: as a table"
