"""The page of `lxsr export web` in a browser computes the pieces and nearest sentences of Python."""

import itertools
import unicodedata

import numpy as np
import pytest
import toy
from conftest import lxsr_here, refused
from random_model import write_model
from spellings import SPELLINGS

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import to_int4, to_int8
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable
from fairseq_lxsr.export import export_web, web_page
from fairseq_lxsr.export.fast_tokenizer import SAMPLE
from fairseq_lxsr.export.web_page import letter_replacements
from fairseq_lxsr.text.folding import write_folded_rules
from fairseq_lxsr.text.tokenizer import normalise

BAG = {"gated": True, "num_layers": 0, "embed_dim": 64}
CORPUS = list(dict.fromkeys(toy.lines(60, seed=3)))
QUERIES = [*CORPUS[:8], *SAMPLE, "", " ", "</script><b>", "ΑΣ \u03c3 ς ﬁ ½ … a▁b"]
QUERIES += ["e\u0301te\u0301 \uff21\uff22 \uff5e \u200b x"]
# Invisible characters, marks, and letters that become capitals or several letters.
QUERIES += [
    "th\u00ade do\u2060g \u200fsee\u200ds",
    "\u0e01\u200b\u0e02 \u2801\u2800\u2802 क\u094d\u200dष",
    "كَتَبَ الطّـالِبُ \ufe76ب",
    "İSTANBUL № \u2115 ㎏ \U0001d403og ị\u0307",
]
# Without a known word, or with a single one.
QUERIES += [
    "\u0e2a\u0e27\u0e31",
    "☃ !",
    "!",
    ", . !",
    "\u00ad",
    "\u3164 \u2800",
    "☃ dog",
    "☃" * 300 + " dog",
    "☃ " * 300 + "dog",
]


def export(folder, model, lines=("", *CORPUS, "<b>bold</b> & </script>")):
    corpus = folder / "corpus"
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ("export", "web", "--model", model, "--input", corpus, "--output", folder / "web")
    return lxsr_here(*command, "--title", "<i>Search</i>", "--example", CORPUS[0], check=False)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["bpe", "unigram"])
@pytest.mark.parametrize(("order", "version"), [(0, 1), (2, 4)])
def test_the_page_has_the_pieces_and_neighbours_of_python_and_asks_no_server(
    browser, tmp_path, pieces, order, version
):
    model = write_model(
        tmp_path / "random", pieces, version=version, order_coefficients=order, **BAG
    )
    assert export(tmp_path, model).returncode == 0
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    context = browser.new_context()
    requests = []
    messages = []
    context.on("request", lambda request: requests.append(request.url))
    context.on("console", lambda message: messages.append(message.text))
    context.on("weberror", lambda error: messages.append(str(error.error)))
    tab = context.new_page()
    tab.goto((tmp_path / "web" / "index.html").as_uri())
    rows = tab.evaluate("texts => texts.map(encode)", QUERIES)
    assert rows == [ids.tolist() for ids in encoder.tokenizer.encode(QUERIES)]
    index = encoder.encode([*CORPUS, "<b>bold</b> & </script>"], normalize=True)
    queries = encoder.encode(QUERIES, normalize=True)
    for text, query in zip(QUERIES, queries, strict=True):
        hits = tab.evaluate("text => { const e = embed(text); return e && nearest(e, 3); }", text)
        assert (hits is None) == (not query.any())
        if hits:
            cosine, row = hits[0]
            cosines = index @ query
            # Rounding to 8 bits may exchange near ties.
            assert cosines[row] > cosines.max() - 0.01
            np.testing.assert_allclose(cosine, cosines[row], atol=0.01)
    tab.fill("#query", CORPUS[5])
    assert tab.locator("#found li").first.inner_text().endswith(CORPUS[5])
    assert tab.inner_text("h1") == "<i>Search</i>"
    # The only request is that of the page itself.
    assert len(requests) == 1, requests
    assert messages == []
    outcome = tab.evaluate("fetch('https://example.org').then(() => 'asked', () => 'forbidden')")
    assert outcome == "forbidden"
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["bpe", "unigram"])
def test_the_page_embeds_20000_pasted_letters_within_100_milliseconds(browser, tmp_path, pieces):
    """In one word or in many, of several scripts, with the pieces of Python."""
    model = write_model(tmp_path / "random", pieces, **BAG)
    assert export(tmp_path, model).returncode == 0
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    kinds = [
        "".join(CORPUS).replace(" ", ""),
        " ".join(CORPUS),
        "xo\u0301 ",
        "会議は九時",
        "le\u0308\u0323",
        "\u1100\u1161",
    ]
    pasted = [(kind * 20_000)[:20_000] for kind in kinds]
    tab = browser.new_page()
    tab.goto((tmp_path / "web" / "index.html").as_uri())
    expected = [ids.tolist() for ids in encoder.tokenizer.encode(pasted)]
    assert tab.evaluate("texts => texts.map(encode)", pasted) == expected
    embedding = "text => { const start = performance.now(); embed(text); return performance.now() - start; }"
    times = [tab.evaluate(f"texts => texts.map({embedding})", pasted) for _ in range(3)]
    assert np.min(times, axis=0).max() < 100, times
    tab.close()


def assert_normalized_alike(browser, folder, model, texts):
    """The page normalizes texts as SentencePiece does."""
    assert export(folder, model).returncode == 0
    tab = browser.new_page()
    tab.goto((folder / "web" / "index.html").as_uri())
    tokenizer = SentenceEncoder.from_pretrained(model, "cpu").tokenizer
    expected = tokenizer.normalized([normalise(text, tokenizer.options) for text in texts])
    assert tab.evaluate("texts => texts.map(normalize)", texts) == expected
    tab.close()


@pytest.mark.slow
def test_the_page_composes_marks_like_sentencepiece(browser, tmp_path):
    """The texts are letters with marks in any order, jamo and kana."""
    model = write_model(tmp_path / "random", **BAG)
    letters = (
        "aeouAÂơạ\uff21\u03b1\u1f00\u0645\u064a\u05e9\u0915\u1100\u1161\u11a8\u3131\uff76か ~\uff5e"
    )
    marks = "\u0300\u0301\u0302\u0303\u0308\u0323\u031b\u0344\u0345\u0651\u0650\u0654\u05c1\u05bc\u093c\u3099\uff9e"
    drawn = np.random.default_rng(1).choice(list(letters + marks * 2), (500, 12))
    texts = [*SAMPLE, *("".join(row).strip() for row in drawn)]
    assert_normalized_alike(browser, tmp_path, model, texts)


@pytest.mark.slow
def test_the_page_folds_letters_like_sentencepiece(browser, tmp_path):
    rules = write_folded_rules(tmp_path)
    model = write_model(tmp_path / "random", version=4, rule=rules, **BAG)
    texts = list(SAMPLE)
    for text in itertools.chain.from_iterable(SPELLINGS):
        texts += [text, text.upper(), unicodedata.normalize("NFD", text)]
    assert_normalized_alike(browser, tmp_path, model, texts)


def test_only_an_exported_page_is_replaced(tmp_path):
    model = write_model(tmp_path / "random", **BAG)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").write_text("<title>mine</title>")
    refused(export(tmp_path, model), "index.html")
    assert (tmp_path / "web" / "index.html").read_text() == "<title>mine</title>"
    (tmp_path / "web" / "index.html").unlink()
    for _ in range(2):
        assert export(tmp_path, model).returncode == 0


def test_the_page_stores_only_letters_that_javascript_normalizes_differently(tmp_path):
    encoder = SentenceEncoder.from_pretrained(write_model(tmp_path / "random", **BAG), "cpu")
    letters = letter_replacements(encoder.tokenizer)
    # NFKC would replace it by a tilde.
    assert letters["\uff5e"] == "\uff5e"
    assert letters["\x7f"] == ""
    assert len(letters) < 500


def test_rounding_to_8_bits_has_an_error_of_half_a_step():
    rows = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    rows[7] = 0
    rounded, scales = to_int8(rows)
    assert np.abs(rounded * scales[:, None] - rows).max() <= scales.max() / 2 + 1e-6
    assert not rounded[7].any()


@pytest.mark.parametrize(
    ("model", "lines", "message"),
    [
        ({"num_layers": 1, "gated": True}, CORPUS, "1 layers"),
        ({"num_layers": 0}, CORPUS, "transformer"),
        # The page cannot compute pieces of bytes.
        (BAG | {"byte_fallback": True}, CORPUS, "byte"),
        (BAG, ["", " "], "corpus"),
    ],
)
def test_models_and_texts_that_a_page_cannot_have_are_refused(tmp_path, model, lines, message):
    refused(export(tmp_path, write_model(tmp_path / "random", **model), lines), message)
    assert not (tmp_path / "web").exists()


@pytest.mark.slow
def test_a_table_in_4_bits_is_half_as_large_and_exact(browser, tmp_path):
    encoder = SentenceEncoder.from_pretrained(write_model(tmp_path / "random", **BAG), "cpu")
    table = PackedTable(*to_int4(encoder.table))
    packed = SentenceEncoder(
        Bag(encoder.size, {TABLE: table}), encoder.tokenizer, encoder.config, folder=encoder.folder
    )
    export_web(encoder, CORPUS, tmp_path / "8", "Search")
    export_web(packed, CORPUS, tmp_path / "4", "Search")
    size_of_8_bits = (tmp_path / "8" / "index.html").stat().st_size
    size_of_4_bits = (tmp_path / "4" / "index.html").stat().st_size
    # In base64, a byte takes 4/3 bytes.
    assert size_of_8_bits - size_of_4_bits > 0.9 * table.codes.size * 4 / 3
    tab = browser.new_page()
    tab.goto((tmp_path / "4" / "index.html").as_uri())
    assert tab.locator("progress").count() == 0
    embeddings = tab.evaluate("texts => texts.map(text => Array.from(embed(text)))", CORPUS)
    np.testing.assert_allclose(embeddings, packed.encode(CORPUS, normalize=True), atol=1e-6)
    tab.close()


@pytest.mark.slow
def test_the_page_shows_how_much_has_been_loaded(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(web_page, "PART_CHARACTERS", 1000)
    encoder = SentenceEncoder.from_pretrained(write_model(tmp_path / "random", **BAG), "cpu")
    export_web(encoder, CORPUS, tmp_path / "web", "Search", CORPUS[0])
    page = (tmp_path / "web" / "index.html").read_text(encoding="utf-8")
    parts = page.count('class="data"')
    assert parts > 10
    assert f'max="{parts}" value="0"' in page
    tab = browser.new_page()
    # Without the last script, the page stays as it is while it is loaded.
    (tmp_path / "loading.html").write_text(page[: page.rindex("<script>")], encoding="utf-8")
    tab.goto((tmp_path / "loading.html").as_uri())
    assert tab.evaluate("document.getElementById('progress').value") == parts
    tab.goto((tmp_path / "web" / "index.html").as_uri())
    assert tab.locator("#found li").first.inner_text().endswith(CORPUS[0])
    tab.close()
