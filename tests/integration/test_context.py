"""`lxsr train-context`: both stages, the rounds, interruptions, and the models that result."""

import fcntl
import itertools
import json
import re
import shutil

import numpy as np
import pytest
import torch
import toy
import yaml
from conftest import lxsr, lxsr_here, refused, weights

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.context.rounds import restore_last_checkpoint
from fairseq_lxsr.files.lines import Lines

OPTIONS = {
    "arch": "context_transformer_tiny",
    "vocab_size": 200,
    "valid_documents": 5,
    "shards": 2,
    "epochs": 6,
    "rounds": 2,
    "draw": 100,
    "best": 50,
    "pairs": 200,
    "batch_size": 32,
    "learning_rate": 0.005,
    "workers": 1,
}


def write_config(path, files, **options):
    content = {
        "documents": {name: str(file) for name, file in files.items()},
        "work": str(path.with_suffix("")),
    }
    path.write_text(yaml.safe_dump(content | OPTIONS | options))
    return path


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Stories of six sentences about one animal each, in two languages. The stories of one
    language are not translations of those of the other.
    """
    folder = tmp_path_factory.mktemp("documents")
    files = {}
    for side, language in enumerate(("en", "fr")):
        pairs = sorted(toy.sentences(720, seed=side + 1), key=lambda pair: pair[0].split()[2])
        files[language] = folder / f"{language}.txt"
        with open(files[language], "w", encoding="utf-8") as stream:
            for number, pair in enumerate(pairs):
                if number % 6 == 0:
                    stream.write("\n")
                stream.write(f"{pair[side]}\n")
    return files


@pytest.fixture(scope="module")
def finished_run(documents, tmp_path_factory):
    """The work folder and the output of a whole run."""
    folder = tmp_path_factory.mktemp("context")
    gold = folder / "gold.tsv"
    rows = [f"{english}\t{french}\n" for english, french in toy.sentences(720, seed=1)]
    gold.write_text("".join(rows))
    result = lxsr("train-context", write_config(folder / "run.yaml", documents, gold=str(gold)))
    return folder / "run", result.stdout


@pytest.fixture(scope="module")
def short_options(toy_model):
    """Options of one epoch and one round; as in the paper, another model mines."""
    mining = {"candidates": 80, "pair_languages": "any"}
    return {"start_model": str(toy_model), "rounds": 1, "epochs": 1, **mining}


@pytest.fixture(scope="module")
def short_run(documents, short_options, tmp_path_factory):
    """The work folder of a run of those options."""
    folder = tmp_path_factory.mktemp("short_run")
    lxsr("train-context", write_config(folder / "run.yaml", documents, **short_options))
    return folder / "run"


@pytest.mark.slow
def test_every_step_learns_and_is_reported(finished_run):
    work, output = finished_run
    for fragment in ("stage1: ", "accuracy 0.", "round1/mined.tsv: 200 pairs", "round2/model: "):
        assert fragment in output, fragment
    updates = dict(re.findall(r"(\w+): training, (\d+) updates", output))
    assert set(updates) == {"stage1", "round1", "round2"}
    for name, count in updates.items():
        # The learning rate falls to zero at the last update.
        log = (work / name / "train.log").read_text()
        assert re.findall(r"num_updates (\d+)", log)[-1] == count
    reports = [json.loads(line) for line in (work / "rounds.jsonl").read_text().splitlines()]
    assert [report["round"] for report in reports] == ["round1", "round2"]
    for report in reports:
        assert report["pairs"] == 200
        assert report["mean cosine"] > 0
        assert 0 <= report["precision"] <= 1
        assert report["seconds"]["draws"] >= 4
    log = (work / "stage1" / "train.log").read_text()
    accuracies = [float(value) for value in re.findall(r"\| accuracy (\S+)", log)]
    assert max(accuracies) > 0.55


@pytest.mark.slow
@pytest.mark.parametrize("step", ["round1", "round2"])
def test_labels_are_the_cosines_of_the_encoder_of_the_previous_step(finished_run, step):
    work, _ = finished_run
    before = {"round1": "stage1", "round2": "round1"}[step]
    encoder = SentenceEncoder.from_pretrained(work / before / "model")
    texts = {language: Lines(work / "documents" / f"train.{language}") for language in ("en", "fr")}
    for line in (work / step / "mined.tsv").read_text().splitlines()[::20]:
        fields = line.split("\t")
        _, cosine, source_language, source_line, target_language, target_line = fields[:6]
        source = texts[source_language][int(source_line)]
        target = texts[target_language][int(target_line)]
        assert fields[6:] == [source, target]
        vectors = encoder.encode([source, target], normalize=True)
        assert float(cosine) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)


@pytest.mark.slow
def test_a_round_continues_from_the_weights_of_the_previous_step(finished_run):
    work, _ = finished_run
    tables = []
    for step in ("stage1", "round1", "round2"):
        tables.append(weights(work / step / "checkpoints")["encoder.embed_tokens.weight"])
    for before, after in itertools.pairwise(tables):
        assert not torch.equal(before, after)
        assert torch.cosine_similarity(before[4:], after[4:]).mean() > 0.9


@pytest.mark.slow
def test_the_model_is_used_by_embed_eval_and_export(finished_run, tmp_path):
    work, _ = finished_run
    model = work / "round2" / "model"
    toy.write(tmp_path / "test", toy.sentences(100, seed=9))
    embed = ("embed", "--model", model, "--input", "test.en", "--output", "en.npy")
    lxsr_here(*embed, folder=tmp_path)
    # 32 numbers of the mean and 32 of the maximum.
    assert np.load(tmp_path / "en.npy").shape == (100, 64)
    options = ("--source", tmp_path / "test.en", "--target", tmp_path / "test.fr")
    assert "nn P@1" in lxsr_here("eval", "xsr", "--model", model, *options).stdout
    refused(
        lxsr_here("export", "onnx", "--model", model, "--output", tmp_path / "out", check=False),
        "mean_max",
    )
    lxsr_here("export", "sentence-transformers", "--model", model, "--output", tmp_path / "out")


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_weights(finished_run, documents, tmp_path):
    work, _ = finished_run
    lxsr("train-context", write_config(tmp_path / "run.yaml", documents, rounds=0))
    config = write_config(tmp_path / "run.yaml", documents, rounds=2)
    # As if it had stopped after mining.
    (tmp_path / "run" / "round1").mkdir()
    shutil.copy(work / "round1" / "mined.tsv", tmp_path / "run" / "round1")
    output = lxsr("train-context", config).stdout
    assert "round1/mined.tsv: 200 pairs" not in output
    assert "round2/mined.tsv: 200 pairs" in output
    for step in ("stage1", "round1", "round2"):
        name = f"{step}/model/model.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (work / name).read_bytes(), step
    mined = (tmp_path / "run" / "round2" / "mined.tsv").read_text()
    assert mined == (work / "round2" / "mined.tsv").read_text()


def test_changed_options_and_a_simultaneous_run_are_refused(
    short_run, documents, short_options, tmp_path
):
    config = tmp_path / "other.yaml"
    data = {path: path.read_bytes() for path in (short_run / "data-bin").rglob("*.bin")}

    def run(**options):
        write_config(config, documents, work=str(short_run), **short_options | options)
        return lxsr_here("train-context", config, check=False)

    refused(run(draw=50), "context.json: ", "draw is 50", " 100;")
    refused(run(valid_documents=6), "context.json: ", "valid_documents is 6", " 5;")
    with (short_run / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused(run(valid_documents=6), short_run)
    (short_run / "lock").unlink()
    assert data == {path: path.read_bytes() for path in data}


def test_changed_text_is_refused(short_run, documents, short_options, tmp_path):
    shutil.copytree(short_run, tmp_path / "work")
    changed = {language: tmp_path / file.name for language, file in documents.items()}
    for language, file in changed.items():
        file.write_text(documents[language].read_text() + "\n\nOne more.\nDocument.\n")
    # As if the files had been changed in place.
    record = json.loads((tmp_path / "work" / "context.json").read_text())
    record["documents"] = {language: str(file) for language, file in changed.items()}
    (tmp_path / "work" / "context.json").write_text(json.dumps(record))
    work = str(tmp_path / "work")
    config = write_config(tmp_path / "run.yaml", changed, work=work, **short_options)
    data = {path: path.read_bytes() for path in (tmp_path / "work").rglob("*") if path.is_file()}
    refused(
        lxsr_here("train-context", config, check=False),
        "context.json: text is ",
        f"{record['text']!r}",
    )
    assert data == {path: path.read_bytes() for path in data}


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ({"draw": 0}, ("run.yaml", "draw 0")),
        ({"documents": {"en": "none.txt", "fr": "none.txt"}}, ("none.txt",)),
        ({"documents": {"en": "none.txt"}}, ("run.yaml", "en")),
        ({"rouns": 2}, ("'rouns'",)),
        ({"start_model": 1}, ("start_model 1",)),
        ({"start_model": "none"}, ("none",)),
        ({"gold": "none.tsv"}, ("none.tsv",)),
        ({"encode_dtype": "bf16"}, ("encode_dtype 'bf16'",)),
        ({"learning_rate": float("nan")}, ("learning_rate nan",)),
        ({"dropout": 1}, ("dropout 1",)),
        ({"max_positions": 0}, ("max_positions 0",)),
        ({"arch": "lxsr_tiny"}, ("arch 'lxsr_tiny'",)),
        ({"cpu_precision": "half"}, ("cpu_precision 'half'",)),
        ({"work": ""}, ("work ''",)),
        ({"documents": {"../en": "a", "fr": "b"}}, ("'../en'",)),
        ({"documents": {"en": "", "fr": "b"}}, ("documents: en ''",)),
        ({"seed": -1}, ("seed -1",)),
        ({"documents": {False: "no.txt"}}, ("documents {False: 'no.txt'}",)),
    ],
)
def test_bad_configurations_are_refused(documents, tmp_path, options, fragments):
    config = write_config(tmp_path / "run.yaml", documents, **options)
    refused(lxsr_here("train-context", config, check=False), *fragments)
    assert not (tmp_path / "run" / "stage1").exists()


@pytest.mark.parametrize("is_best_whole", [True, False])
def test_a_damaged_last_checkpoint_is_replaced_by_the_best_if_that_is_whole(
    short_run, tmp_path, is_best_whole
):
    shutil.copytree(short_run / "stage1" / "checkpoints", tmp_path / "checkpoints")
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    best = tmp_path / "checkpoints" / "checkpoint_best.pt"
    last.write_bytes(last.read_bytes()[:1000])
    if not is_best_whole:
        best.write_bytes(b"")
    restore_last_checkpoint(last)
    assert last.exists() == is_best_whole
    if is_best_whole:
        assert last.read_bytes() == best.read_bytes()


def test_another_model_may_mine_the_first_round_in_pairs_of_any_languages(short_run, toy_model):
    report = json.loads((short_run / "rounds.jsonl").read_text())
    assert report["model"] == str(toy_model)
    pairs = []
    for line in (short_run / "round1" / "mined.tsv").read_text().splitlines():
        columns = line.split("\t")
        pairs.append((columns[2], columns[4]))
    assert {("en", "en"), ("fr", "fr")} < set(pairs)
    assert len(pairs) == 200
