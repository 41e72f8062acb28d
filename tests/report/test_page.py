"""The page in a real browser: what it says, at two sizes, without errors and without network."""

import shutil

import numpy as np
import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.published import CAUTION
from fairseq_lxsr.evaluation.score import Outcomes, from_hits
from fairseq_lxsr.report import look_at, write_report
from fairseq_lxsr.report.training_log import Curves

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"phone": (390, 844), "desk": (1280, 900)}
RNG = np.random.default_rng(0)
NASTY = "<script>alert('x')</script> & \"ü\""


def contents():
    source = [NASTY, *(f"sentence number {i}" for i in range(59))]
    target = [f"phrase {i}" for i in range(60)]
    left = RNG.standard_normal((60, 16))
    sample = look_at(source, target, left, left + 0.9 * RNG.standard_normal((60, 16)), ("en", "fr"))
    curves = Curves("train.log")
    for name, values in {"loss": (9.0, 5.0, 4.5), "accuracy": (0.1, 0.6, 0.9)}.items():
        curves.train[name] = dict(zip((10, 20, 30), values, strict=True))
    settings = {"metric": "nn-cosine", "queries": 4, "model": "abc"}
    scores = [from_hits("xsr", task, {"P@1": Outcomes([1, 1, 0, 1])}, settings) for task in ("en->fr", "fr->en")]
    return [curves], scores, [sample]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, f"A run {NASTY}", *contents())
    return path


def test_one_file_that_asks_for_nothing(page):
    text = page.read_text(encoding="utf-8")
    head = text[: text.index("<script>")] + text[text.index("</script>") :]
    assert "src=" not in head
    assert "@import" not in head
    assert NASTY not in text


def test_what_there_is_nothing_of_is_left_out(tmp_path):
    logs, scores, _ = contents()
    write_report(tmp_path / "a.html", "a", logs, [], [])
    assert "<h2>Scores" not in (tmp_path / "a.html").read_text()
    write_report(tmp_path / "b.html", "b", [], scores, [])
    assert "<h2>Training" not in (tmp_path / "b.html").read_text()
    with pytest.raises(InputError, match="nothing to report"):
        write_report(tmp_path / "c.html", "c", [], [], [])
    assert not (tmp_path / "c.html").exists()


def test_missing_libraries_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs plotly, .*: pip install 'fairseq-lxsr\[report\]'"):
        write_report(tmp_path / "a.html", "a", *contents())


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
@pytest.mark.parametrize("size", SIZES)
def test_in_a_browser(page, size):
    playwright = pytest.importorskip("playwright.sync_api")
    width, height = SIZES[size]
    messages, requests = [], []
    with playwright.sync_playwright() as driver:
        flags = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
        quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
        browser = driver.chromium.launch(executable_path=BROWSER, args=[*flags, *quiet])
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.on("dialog", lambda dialog: messages.append("a script in the text ran"))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 5")
        text = tab.inner_text("body")
        drawn = tab.locator(".js-plotly-plot").evaluate_all(
            "nodes => nodes.map(node => node.getBoundingClientRect().width)"
        )
        bars = tab.locator(".bars .point").count()
        dots = tab.locator(".scatterlayer .point").count()
        scroll = tab.evaluate("document.documentElement.scrollWidth")
        tab.locator(".scatterlayer .point").nth(70).hover(force=True)  # plotly catches the pointer above the points
        tab.wait_for_selector(".hoverlayer .hovertext")
        hovered = tab.text_content(".hoverlayer .hovertext")
        browser.close()
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    for expected in ("A run <script>", "Loss per pair", "en → fr", "75.0", "model:abc", CAUTION, "Errors to read"):
        assert expected in text
    assert len(drawn) == 5
    assert all(0.5 * min(width, 1000) < value <= width for value in drawn)
    assert bars >= 2
    assert dots >= 120
    assert "sentence number" in hovered or "phrase" in hovered or NASTY[:8] in hovered
    assert scroll <= width  # nothing pushes the page wider than the window
