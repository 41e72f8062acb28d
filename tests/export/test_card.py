"""The card of a model folder: training, sizes, sources, and only the scores of this model."""

import json
from dataclasses import replace

import pytest
import small_model
from conftest import lxsr, lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.score import Outcomes, Score, append_scores, from_hits
from fairseq_lxsr.export.card import ST, write_card
from fairseq_lxsr.export.card_content import CardContent, TextSources
from fairseq_lxsr.export.folder import describe_training
from fairseq_lxsr.files.records import parse_json, sealed


@pytest.fixture
def folder(tmp_path, toy_checkpoint):
    """The model folder of a checkpoint, with the card that `lxsr export folder` writes."""
    lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """A model folder without layers and without a description of its training."""
    return small_model.write_folder(tmp_path_factory.mktemp("bag") / "model", num_layers=0)


def fingerprint_of(folder) -> str:
    return SentenceEncoder.from_pretrained(folder).fingerprint


def score_of(model: str) -> Score:
    """Return a score of the model with a fingerprint."""
    return Score("xsr", "en->fr", {"P@1": 91.25}, {"metric": "nn", "queries": 20, "model": model})


def write_card_of(folder, *options) -> str:
    """Run `lxsr export card`; return the card."""
    lxsr_here("export", "card", "--model", folder, *options)
    return (folder / "README.md").read_text()


# -- training and sizes


def test_the_card_of_an_export_describes_the_training(folder):
    card = (folder / "README.md").read_text()

    pairs = json.loads((folder / "config.json").read_text())["training"]["pairs"]
    assert set(pairs) == {"en-fr"}
    assert f"| text | en-fr: {pairs['en-fr']:,} pairs |" in card
    assert "| objective | ugt |" in card
    assert "| align similarity | inner |" in card
    # Options of terms that the training did not have are left out.
    assert "distill" not in card


def test_the_card_of_an_export_names_languages_speed_model_and_how_to_get_scores(folder):
    card = (folder / "README.md").read_text()

    assert 'language: ["en", "fr"]' in card
    assert "sentences/s" in card
    assert fingerprint_of(folder) in card
    assert "lxsr eval" in card


@pytest.mark.parametrize(
    ("sizes", "training", "row"),
    [
        ({"num_layers": 2}, {}, "| layers | 2 |"),
        ({"num_layers": 2, "gated": True}, {}, "| layers | 2, gated |"),
        ({"num_layers": 0, "gated": True}, {}, "| layers | none |"),
        # A number of 0 is shown, too.
        ({}, {"seed": 0}, "| seed | 0 |"),
        ({}, {"updates": 7}, "| updates | 7 |"),
        (
            {},
            {"finetuned": True},
            "| started from | another checkpoint, whose updates are not counted |",
        ),
    ],
)
def test_the_card_has_a_row_for_layers_and_for_each_fact_of_the_training(
    tmp_path, sizes, training, row
):
    folder = small_model.write_folder(tmp_path / "model", **sizes)
    config = parse_json((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"training": training}))

    card = write_card_of(folder)

    assert f"\n{row}\n" in card


def test_the_card_of_a_model_trained_from_scratch_names_no_other_checkpoint(bag):
    assert "another checkpoint" not in write_card_of(bag)


@pytest.fixture
def shards(tmp_path, toy_work):
    """Two data folders with the same pairs of en-fr; the second has an unreadable index of en-de."""
    first_shard = toy_work / "data-bin"
    second_shard = tmp_path / "second"
    second_shard.mkdir()
    for language in ("en", "fr"):
        name = f"train.en-fr.{language}.idx"
        (second_shard / name).write_bytes((first_shard / name).read_bytes())
        other_index = second_shard / f"train.en-de.{language}.idx"
        other_index.write_bytes(b"another kind of index, longer than 26 bytes")
    return [first_shard, second_shard]


def training_state(lang_pairs: str | None) -> dict:
    criterion = {"_name": "x", "align_weight": 2.0, "distill_weight": 1.0}
    cfg = {"task": {"lang_pairs": lang_pairs}, "criterion": criterion, "common": {"seed": 1}}
    return {"cfg": cfg, "optimizer_history": [{"num_updates": 7}], "task_state": {}}


def test_pairs_of_all_shards_are_counted(shards):
    """The languages of a pair may be in the other order than in the name of the file."""
    state = training_state("fr-en")

    count = describe_training(state, shards[:1])["pairs"]["en-fr"]

    # The toy corpus has 1,200 pairs, of which 300 are for validation and test.
    assert count > 500
    assert describe_training(state, shards)["pairs"] == {"en-fr": 2 * count}


def test_all_pairs_of_the_data_are_counted_if_the_training_names_none(shards):
    count = describe_training(training_state("fr-en"), shards)["pairs"]["en-fr"]

    pairs = describe_training(training_state(None), shards)["pairs"]

    # The index of en-de cannot be read.
    assert pairs == {"en-de": 0, "en-fr": count}


# -- sources of the text


SOURCE = {
    "name": "acts",
    "about": "laws | rules",
    "url": "https://example.org",
    "licence": "CC BY 4.0",
    "attribution": "a\nministry",
    "pairs": {"en-fr": 12345},
}


def test_the_card_has_a_note_and_a_table_of_the_sources_of_the_text(bag, tmp_path):
    """A bar in a cell is escaped, a line break becomes a space, and unknown fields are left out."""
    sources = {"note": "All of it.", "sources": [SOURCE | {"tag": "more"}]}
    (tmp_path / "s.json").write_text(json.dumps(sources))

    card = write_card_of(bag, "--sources", tmp_path / "s.json")

    table = (
        "| source | licence | attribution | pairs |\n|---|---|---|---|\n"
        "| acts: laws \\| rules, https://example.org | CC BY 4.0 | a ministry | en-fr 12,345 |\n"
    )
    assert f"## Text\n\nAll of it.\n\n{table}" in card


# HTML, a bar, a picture, escaped HTML, a heading, a control character and a line separator.
HOSTILE = "<script>x</script> | a ![b](http://c) &lt;i&gt;\n# head\x9b\u2028"
HOSTILE_NAME = f'x"{HOSTILE}'


@pytest.fixture
def hostile_card(bag, tmp_path):
    """The front matter and the text of a card with HOSTILE in every field that users write."""
    source = SOURCE | {"name": HOSTILE, "licence": HOSTILE}
    (tmp_path / "s.json").write_text(json.dumps({"note": HOSTILE, "sources": [source]}))
    sources = TextSources.read(tmp_path / "s.json")
    encoder = SentenceEncoder.from_pretrained(bag, "cpu")
    scores = [replace(score_of(encoder.fingerprint), task=HOSTILE)]
    write_card(tmp_path, encoder, scores, sources, HOSTILE_NAME, ST)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    _, front_matter, text = card.split("---\n", 2)
    return front_matter, text


def test_hostile_text_in_a_card_becomes_no_html_link_or_heading(hostile_card):
    _, text = hostile_card

    assert "\n# head" not in text
    for line in text.splitlines():
        # Code is shown verbatim: in a block, and in a call with a name in quotes.
        is_code = line.startswith("    ") or "(" in line.partition('"')[0]
        if not is_code:
            assert "<script" not in line
            assert "](" not in line
            assert "&lt;i" not in line


def test_a_hostile_name_is_a_string_of_the_metadata_and_of_the_code(hostile_card):
    yaml = pytest.importorskip("yaml")
    front_matter, text = hostile_card

    (index,) = yaml.safe_load(front_matter)["model-index"]
    assert index["name"] == HOSTILE_NAME
    code = text.partition("```python\n")[2].partition("```")[0]
    # Raises no SyntaxError.
    compile(code, "card", "exec")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("[]", "list", id="list"),
        pytest.param("{", "line 1 column 2", id="not JSON"),
        pytest.param('{"sources": []}', "note None", id="no note"),
        pytest.param('{"note": "x", "sources": []}', "sources []", id="no sources"),
        pytest.param('{"note": "x", "sources": [5]}', "source 1: 5", id="number"),
        pytest.param(
            '{"note": "x", "sources": [{"name": "x"}]}', "source 1: {'name': 'x'}", id="only a name"
        ),
        pytest.param(
            json.dumps({"note": "x", "sources": [SOURCE, SOURCE | {"licence": None}]}),
            "source 2: licence None",
            id="no licence",
        ),
        pytest.param(
            json.dumps({"note": "x", "sources": [SOURCE | {"pairs": {"en-fr": "1"}}]}),
            "source 1: pairs {'en-fr'",
            id="number of pairs is text",
        ),
    ],
)
def test_an_invalid_table_of_sources_is_refused_and_the_card_kept(bag, tmp_path, content, message):
    (tmp_path / "s.json").write_text(content)
    before = write_card_of(bag)

    command = ("export", "card", "--model", bag, "--sources", tmp_path / "s.json")
    done = lxsr_here(*command, check=False)

    refused(done, tmp_path / "s.json", message)
    assert (bag / "README.md").read_text() == before


# -- scores


def test_scores_come_with_their_signatures_in_place_of_the_advice_to_measure(bag, tmp_path):
    score = score_of(fingerprint_of(bag))
    append_scores(tmp_path / "scores.jsonl", [score])

    card = write_card_of(bag, "--scores", tmp_path / "scores.jsonl")

    assert "| xsr en->fr | P@1 91.2 |" in card
    assert score.signature in card
    assert "lxsr eval" not in card


def test_a_folder_with_a_new_card_is_still_read(folder, tmp_path):
    """The card and the scores are not among the files of the model."""
    append_scores(tmp_path / "scores.jsonl", [score_of(fingerprint_of(folder))])

    write_card_of(folder, "--scores", tmp_path / "scores.jsonl")

    assert SentenceEncoder.from_pretrained(folder).encode(["A dog."]).any()


def test_several_scores_of_a_task_are_named_with_their_metric(bag, tmp_path):
    """Of a task and metric with two scores, the card has the last one."""
    fingerprint = fingerprint_of(bag)
    for task, metric, value in (
        ("en->fr", "nn-cosine", 91.0),
        ("en->fr", "csls-k10", 92.0),
        ("en->fr", "csls-k10", 93.0),
        ("en->de", "nn-cosine", 94.0),
    ):
        settings = {"metric": metric, "queries": 20, "model": fingerprint}
        append_scores(tmp_path / "scores.jsonl", [Score("xsr", task, {"P@1": value}, settings)])

    card = write_card_of(bag, "--scores", tmp_path / "scores.jsonl")

    rows = [line for line in card.splitlines() if line.startswith("| xsr")]
    assert rows == [
        "| xsr en->fr, nn-cosine | P@1 91.0 |",
        "| xsr en->fr, csls-k10 | P@1 93.0 |",
        "| xsr en->de | P@1 94.0 |",
    ]


def test_a_new_card_has_the_sources_and_scores_of_the_one_before(bag, tmp_path):
    """They are stored in scores.json of the folder, so the card itself may be deleted."""
    (tmp_path / "s.json").write_text(json.dumps({"note": "All of it.", "sources": [SOURCE]}))
    score = score_of(fingerprint_of(bag))
    append_scores(tmp_path / "scores.jsonl", [score])
    write_card_of(bag, "--sources", tmp_path / "s.json")
    write_card_of(bag, "--scores", tmp_path / "scores.jsonl")
    (bag / "README.md").unlink()

    card = write_card_of(bag)

    assert "All of it." in card
    assert "| xsr en->fr | P@1 91.2 |" in card
    stored = CardContent.read(bag)
    assert stored.scores == (score,)
    assert stored.sources == TextSources.read(tmp_path / "s.json")


def test_a_card_from_a_score_file_and_one_from_scores_json_show_the_same_figures(bag, tmp_path):
    score = score_of(fingerprint_of(bag))
    # With the four decimals of scores.json this is 87.75; one decimal of 87.74996 is 87.7.
    append_scores(tmp_path / "scores.jsonl", [replace(score, values={"P@1": 87.74996})])

    first_card = write_card_of(bag, "--scores", tmp_path / "scores.jsonl")
    second_card = write_card_of(bag)

    assert [line for line in first_card.splitlines() if "P@1" in line] == [
        line for line in second_card.splitlines() if "P@1" in line
    ]


def test_scores_in_the_folder_are_rounded_and_have_no_outcomes_of_single_sentences(bag, tmp_path):
    settings = {"metric": "nn", "model": fingerprint_of(bag)}
    two_of_three = Outcomes([1, 0, 1])
    score = from_hits("xsr", "en->fr", {"P@1": two_of_three}, settings)
    append_scores(tmp_path / "scores.jsonl", [score])

    write_card_of(bag, "--scores", tmp_path / "scores.jsonl")

    [stored] = CardContent.read(bag).scores
    assert stored.outcomes == {}
    assert stored.values == {"P@1": 66.6667}


# The content of a scores.json without scores, and a score that it may have.
VALID = {"model": "x", "scores": [], "sources": None}
RECORD = score_of("x").as_dict()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # Python finds no value in the first line.
        pytest.param("", "line 1", id="empty file"),
        pytest.param("[" * 100_000, "nested", id="deep lists"),
        # Where the package names no reason, the message has the error of Python, which names the
        # type of the value.
        pytest.param("[]", "list", id="list"),
        pytest.param("{}", "model", id="no model"),
        pytest.param(json.dumps(VALID | {"model": 5}), "invalid model: 5", id="number as model"),
        pytest.param(json.dumps(VALID | {"scores": None}), "NoneType", id="null as scores"),
        # A key is looked up in the string as in an object.
        pytest.param(json.dumps(VALID | {"scores": ["x"]}), "string indices", id="string as score"),
        pytest.param(
            json.dumps(VALID | {"scores": [RECORD | {"values": {"P@1": "91"}}]}),
            "invalid values",
            id="string as value",
        ),
        pytest.param(json.dumps(VALID | {"sources": 7}), "int", id="number as sources"),
        pytest.param(
            json.dumps(VALID | {"sources": {"note": "x", "sources": [5]}}),
            "source 1: 5",
            id="number as source",
        ),
        # A changed letter does not have the stored checksum.
        pytest.param(json.dumps(sealed(VALID)).replace('"x"', '"y"'), "crc32", id="changed letter"),
    ],
)
def test_damaged_scores_in_the_folder_are_refused_and_the_card_kept(tmp_path, content, reason):
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    before = write_card_of(folder)
    (folder / "scores.json").write_text(content)

    done = lxsr_here("export", "card", "--model", folder, check=False)

    refused(done, folder / "scores.json", reason, "delete the file")
    assert (folder / "README.md").read_text() == before


def test_a_threshold_is_shown_as_not_percent(bag, tmp_path):
    score = replace(score_of(fingerprint_of(bag)), values={"F1": 78.8, "threshold": 1.07234})
    append_scores(tmp_path / "scores.jsonl", [score])

    card = write_card_of(bag, "--scores", tmp_path / "scores.jsonl")

    assert "| xsr en->fr | F1 78.8, threshold 1.0723 (not percent) |" in card


def test_scores_of_another_model_are_refused_and_the_card_kept(bag, tmp_path):
    other_fingerprint = "0123456789ab"
    append_scores(tmp_path / "scores.jsonl", [score_of(other_fingerprint)])
    before = write_card_of(bag)

    command = ("export", "card", "--model", bag, "--scores", tmp_path / "scores.jsonl")
    done = lxsr_here(*command, check=False)

    refused(done, other_fingerprint, "xsr en->fr")
    assert (bag / "README.md").read_text() == before
