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
    lxsr("export", "folder", "--checkpoint", toy_checkpoint, "--output", tmp_path / "model")
    return tmp_path / "model"


def score_of(model):
    return Score("xsr", "en->fr", {"P@1": 91.25}, {"metric": "nn", "queries": 20, "model": model})


def test_the_card_of_an_export_names_text_objective_and_languages(folder):
    card = (folder / "README.md").read_text()
    pairs = json.loads((folder / "config.json").read_text())["training"]["pairs"]
    assert set(pairs) == {"en-fr"}
    rows = [
        f"| text | en-fr: {pairs['en-fr']:,} pairs |",
        "| objective | ugt |",
        "| align similarity | inner |",
    ]
    fingerprint = SentenceEncoder.from_pretrained(folder).fingerprint
    for fragment in (*rows, 'language: ["en", "fr"]', "sentences/s", fingerprint, "lxsr eval"):
        assert fragment in card
    assert "distill" not in card


def written(folder, *options):
    """Return the card that the command writes."""
    lxsr_here("export", "card", "--model", folder, *options)
    return (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("sizes", "training", "rows"),
    [
        ({"num_layers": 2}, {"seed": 0}, ["| layers | 2 |", "| seed | 0 |"]),
        ({"num_layers": 2, "gated": True}, {}, ["| layers | 2, gated |"]),
        (
            {"num_layers": 0, "gated": True},
            {"updates": 7},
            ["| layers | none |", "| updates | 7 |"],
        ),
        (
            {"num_layers": 2},
            {"finetuned": True},
            ["| started from | another checkpoint, whose updates are not counted |"],
        ),
    ],
)
def test_layers_and_an_earlier_training_are_named(tmp_path, sizes, training, rows):
    folder = small_model.write_folder(tmp_path / "model", **sizes)
    config = parse_json((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"training": training}))
    card = written(folder)
    for row in rows:
        assert f"\n{row}\n" in card
    assert ("another checkpoint" in card) == ("finetuned" in training)


def test_pairs_of_all_shards_and_chosen_languages_are_counted(tmp_path, toy_work):
    first_shard = toy_work / "data-bin"
    second_shard = tmp_path / "second"
    second_shard.mkdir()
    for language in ("en", "fr"):
        name = f"train.en-fr.{language}.idx"
        (second_shard / name).write_bytes((first_shard / name).read_bytes())
        other_index = second_shard / f"train.en-de.{language}.idx"
        other_index.write_bytes(b"another kind of index, longer than 26 bytes")
    criterion = {"_name": "x", "align_weight": 2.0, "distill_weight": 1.0}
    cfg = {"task": {"lang_pairs": "fr-en"}, "criterion": criterion, "common": {"seed": 1}}
    state = {"cfg": cfg, "optimizer_history": [{"num_updates": 7}], "task_state": {}}
    shards = [first_shard, second_shard]
    count = describe_training(state, [first_shard])["pairs"]["en-fr"]
    assert count > 500
    assert describe_training(state, shards)["pairs"] == {"en-fr": 2 * count}
    state["cfg"]["task"]["lang_pairs"] = None
    assert describe_training(state, shards)["pairs"] == {"en-de": 0, "en-fr": 2 * count}


SOURCE = {
    "name": "acts",
    "about": "laws | rules",
    "url": "https://example.org",
    "licence": "CC BY 4.0",
    "attribution": "a\nministry",
    "pairs": {"en-fr": 12345},
}


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    return small_model.write_folder(tmp_path_factory.mktemp("bag") / "model", num_layers=0)


def test_the_card_names_the_sources_of_the_text(bag, tmp_path):
    (tmp_path / "s.json").write_text(
        json.dumps({"note": "All of it.", "sources": [SOURCE | {"tag": "more"}]})
    )
    row = "| acts: laws \\| rules, https://example.org | CC BY 4.0 | a ministry | en-fr 12,345 |"
    head = (
        "## Text\n\nAll of it.\n\n| source | licence | attribution | pairs |\n|---|---|---|---|\n"
    )
    assert f"{head}{row}\n" in written(bag, "--sources", tmp_path / "s.json")


def test_hostile_text_in_a_card_becomes_no_html_link_or_heading(bag, tmp_path):
    yaml = pytest.importorskip("yaml")
    hostile = "<script>x</script> | a ![b](http://c) &lt;i&gt;\n# head\x9b\u2028"
    source = SOURCE | {"name": hostile, "licence": hostile}
    (tmp_path / "s.json").write_text(json.dumps({"note": hostile, "sources": [source]}))
    encoder = SentenceEncoder.from_pretrained(bag, "cpu")
    score = score_of(encoder.fingerprint)
    scores = [replace(score, task=hostile)]
    name = f'x"{hostile}'
    write_card(tmp_path, encoder, scores, TextSources.read(tmp_path / "s.json"), name, ST)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    _, front, rest = card.split("---\n", 2)
    (index,) = yaml.safe_load(front)["model-index"]
    assert index["name"] == name
    assert "\n# head" not in rest
    for line in rest.splitlines():
        # Code is shown verbatim.
        if not line.startswith("    ") and "(" not in line.partition('"')[0]:
            assert "<script" not in line
            assert "](" not in line
            assert "&lt;i" not in line
    code = rest.partition("```python\n")[2].partition("```")[0]
    compile(code, "card", "exec")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "list"),
        ("{", "line 1 column 2"),
        ('{"sources": []}', "note None"),
        ('{"note": "x", "sources": []}', "sources []"),
        ('{"note": "x", "sources": [5]}', "source 1: 5"),
        ('{"note": "x", "sources": [{"name": "x"}]}', "source 1: {'name': 'x'}"),
        (
            json.dumps({"note": "x", "sources": [SOURCE, SOURCE | {"licence": None}]}),
            "source 2: licence None",
        ),
        (
            json.dumps({"note": "x", "sources": [SOURCE | {"pairs": {"en-fr": "1"}}]}),
            "source 1: pairs {'en-fr'",
        ),
    ],
)
def test_invalid_tables_of_sources_are_refused(bag, tmp_path, content, message):
    (tmp_path / "s.json").write_text(content)
    before = written(bag)
    done = lxsr_here(
        "export", "card", "--model", bag, "--sources", tmp_path / "s.json", check=False
    )
    refused(done, tmp_path / "s.json", message)
    assert (bag / "README.md").read_text() == before


def test_scores_come_with_their_signatures(tmp_path, folder):
    score = score_of(SentenceEncoder.from_pretrained(folder).fingerprint)
    append_scores(tmp_path / "scores.jsonl", [score])
    card = written(folder, "--scores", tmp_path / "scores.jsonl")
    assert "| xsr en->fr | P@1 91.2 |" in card
    assert score.signature in card
    assert "lxsr eval" not in card
    assert SentenceEncoder.from_pretrained(folder).encode(["A dog."]).shape[0] == 1


def test_several_scores_of_a_task_are_named_with_their_metric(bag, tmp_path):
    """Of a task and metric with two scores, the card has the last one."""
    fingerprint = SentenceEncoder.from_pretrained(bag).fingerprint
    for task, metric, value in (
        ("en->fr", "nn-cosine", 91.0),
        ("en->fr", "csls-k10", 92.0),
        ("en->fr", "csls-k10", 93.0),
        ("en->de", "nn-cosine", 94.0),
    ):
        settings = {"metric": metric, "queries": 20, "model": fingerprint}
        append_scores(tmp_path / "scores.jsonl", [Score("xsr", task, {"P@1": value}, settings)])
    card = written(bag, "--scores", tmp_path / "scores.jsonl")
    rows = [line for line in card.splitlines() if line.startswith("| xsr")]
    assert rows == [
        "| xsr en->fr, nn-cosine | P@1 91.0 |",
        "| xsr en->fr, csls-k10 | P@1 93.0 |",
        "| xsr en->de | P@1 94.0 |",
    ]


def test_the_card_keeps_sources_and_scores_without_new_ones(bag, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"note": "All of it.", "sources": [SOURCE]}))
    score = score_of(SentenceEncoder.from_pretrained(bag).fingerprint)
    append_scores(tmp_path / "scores.jsonl", [score])
    written(bag, "--sources", tmp_path / "s.json")
    written(bag, "--scores", tmp_path / "scores.jsonl")
    (bag / "README.md").unlink()
    card = written(bag)
    assert "All of it." in card
    assert "| xsr en->fr | P@1 91.2 |" in card
    stored = CardContent.read(bag)
    assert stored.scores == (score,)
    assert stored.sources == TextSources.read(tmp_path / "s.json")


def test_scores_in_the_folder_have_no_outcomes_of_single_sentences(bag, tmp_path):
    settings = {"metric": "nn", "model": SentenceEncoder.from_pretrained(bag).fingerprint}
    score = from_hits("xsr", "en->fr", {"P@1": Outcomes([1, 0, 1])}, settings)
    append_scores(tmp_path / "scores.jsonl", [score])
    written(bag, "--scores", tmp_path / "scores.jsonl")
    [stored] = CardContent.read(bag).scores
    assert stored.outcomes == {}
    assert stored.values == {"P@1": 66.6667}


VALID = {"model": "x", "scores": [], "sources": None}
RECORD = score_of("x").as_dict()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "line 1"),
        ("[" * 100_000, "nested"),
        ("[]", "list"),
        ("{}", "model"),
        (json.dumps(VALID | {"model": 5}), "invalid model: 5"),
        (json.dumps(VALID | {"scores": None}), "NoneType"),
        (json.dumps(VALID | {"scores": ["x"]}), "string indices"),
        (json.dumps(VALID | {"scores": [RECORD | {"values": {"P@1": "91"}}]}), "invalid values"),
        (json.dumps(VALID | {"sources": 7}), "int"),
        (json.dumps(VALID | {"sources": {"note": "x", "sources": [5]}}), "source 1: 5"),
        (json.dumps(sealed(VALID)).replace('"x"', '"y"'), "crc32"),
    ],
)
def test_damaged_scores_in_the_folder_are_refused(tmp_path, content, reason):
    folder = small_model.write_folder(tmp_path / "model", num_layers=0)
    before = written(folder)
    (folder / "scores.json").write_text(content)
    done = lxsr_here("export", "card", "--model", folder, check=False)
    refused(done, folder / "scores.json", reason, "delete the file")
    assert (folder / "README.md").read_text() == before


def test_a_threshold_is_shown_as_not_percent(bag, tmp_path):
    score = score_of(SentenceEncoder.from_pretrained(bag).fingerprint)
    score = replace(score, values={"F1": 78.8, "threshold": 1.07234})
    append_scores(tmp_path / "scores.jsonl", [score])
    card = written(bag, "--scores", tmp_path / "scores.jsonl")
    assert "| xsr en->fr | F1 78.8, threshold 1.0723 (not percent) |" in card


def test_scores_of_another_model_are_refused(tmp_path, folder):
    append_scores(tmp_path / "scores.jsonl", [score_of("0123456789ab")])
    before = (folder / "README.md").read_text()
    done = lxsr(
        "export", "card", "--model", folder, "--scores", tmp_path / "scores.jsonl", check=False
    )
    refused(done, "0123456789ab", "xsr en->fr")
    assert (folder / "README.md").read_text() == before
