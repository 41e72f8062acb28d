"""`lxsr train-context`: both stages and the rounds, interrupted and resumed, and what the models
are good for.
"""

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
}
OPTIONS |= {
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
    """Stories of six sentences that speak of one animal each, in two languages, not translations of
    each other.
    """
    folder = tmp_path_factory.mktemp("documents")
    files = {}
    for side, language in enumerate(("en", "fr")):
        pairs = sorted(toy.sentences(720, seed=side + 1), key=lambda pair: pair[0].split()[2])
        stories = [pairs[start : start + 6] for start in range(0, len(pairs), 6)]
        files[language] = folder / f"{language}.txt"
        files[language].write_text(
            "\n\n".join("\n".join(pair[side] for pair in story) for story in stories)
        )
    return files


@pytest.fixture(scope="module")
def finished(documents, tmp_path_factory):
    """A whole run, its work folder and what it said."""
    folder = tmp_path_factory.mktemp("context")
    gold = folder / "gold.tsv"
    gold.write_text(
        "".join(f"{english}\t{french}\n" for english, french in toy.sentences(720, seed=1))
    )
    done = lxsr("train-context", write_config(folder / "run.yaml", documents, gold=str(gold)))
    return folder / "run", done.stdout


@pytest.fixture(scope="module")
def short_options(toy_model):
    """One epoch, and one round that another model mines, as the paper does."""
    mining = {"candidates": 80, "pair_languages": "any"}
    return {"start_model": str(toy_model), "rounds": 1, "epochs": 1, **mining}


@pytest.fixture(scope="module")
def short(documents, short_options, tmp_path_factory):
    """The work folder of a run of those options."""
    folder = tmp_path_factory.mktemp("short")
    lxsr("train-context", write_config(folder / "run.yaml", documents, **short_options))
    return folder / "run"


@pytest.mark.slow
def test_every_step_is_reported_and_learns(finished):
    work, said = finished
    for fragment in ("stage1: ", "accuracy 0.", "round1/mined.tsv: 200 pairs", "round2/model: "):
        assert fragment in said, fragment
    updates = {
        name: int(count) for name, count in re.findall(r"(\w+): training, (\d+) updates", said)
    }
    assert set(updates) == {"stage1", "round1", "round2"}
    for name, count in updates.items():  # the learning rate falls to zero at the last
        assert re.findall(r"num_updates (\d+)", (work / name / "train.log").read_text())[-1] == str(
            count
        )
    reports = [json.loads(line) for line in (work / "rounds.jsonl").read_text().splitlines()]
    assert [report["round"] for report in reports] == ["round1", "round2"]
    for report in reports:
        assert report["pairs"] == 200
        assert report["mean cosine"] > 0
        assert 0 <= report["precision"] <= 1
        assert report["seconds"]["draws"] >= 4
    log = (work / "stage1" / "train.log").read_text()
    accuracies = [
        float(part.split()[1]) for part in log.split("|") if part.strip().startswith("accuracy ")
    ]
    assert max(accuracies) > 0.55  # the first stage learns


@pytest.mark.slow
@pytest.mark.parametrize("step", ["round1", "round2"])
def test_labels_are_the_cosines_of_the_encoder_of_the_step_before(finished, step):
    work, _ = finished
    before = {"round1": "stage1", "round2": "round1"}[step]
    encoder = SentenceEncoder.from_pretrained(work / before / "model")
    texts = {language: Lines(work / "documents" / f"train.{language}") for language in ("en", "fr")}
    for line in (work / step / "mined.tsv").read_text().splitlines()[::20]:
        _, cosine, one, first, other, second, *said = line.split("\t")
        assert said == [texts[one][int(first)], texts[other][int(second)]]
        vectors = encoder.encode(said, normalize=True)
        assert float(cosine) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)


@pytest.mark.slow
def test_the_rounds_start_from_what_was_learnt(finished):
    work, _ = finished
    steps = ("stage1", "round1", "round2")
    tables = [weights(work / step / "checkpoints")["encoder.embed_tokens.weight"] for step in steps]
    for one, other in itertools.pairwise(tables):
        assert not torch.equal(one, other)
        assert torch.cosine_similarity(one[4:], other[4:]).mean() > 0.9


@pytest.mark.slow
def test_the_model_embeds_and_is_evaluated(finished, tmp_path):
    work, _ = finished
    model = work / "round2" / "model"
    toy.write(tmp_path / "test", toy.sentences(100, seed=9))
    lxsr_here(
        "embed", "--model", model, "--input", tmp_path / "test.en", "--output", tmp_path / "en.npy"
    )
    assert np.load(tmp_path / "en.npy").shape == (100, 64)  # mean and maximum
    options = ("--source", tmp_path / "test.en", "--target", tmp_path / "test.fr")
    assert "nn P@1" in lxsr_here("eval", "xsr", "--model", model, *options).stdout
    refused(
        lxsr_here("export", "onnx", "--model", model, "--output", tmp_path / "out", check=False),
        "mean_max",
    )
    lxsr_here("export", "sentence-transformers", "--model", model, "--output", tmp_path / "out")


@pytest.mark.slow
def test_interrupted_anywhere_it_ends_with_the_same_weights(finished, documents, tmp_path):
    """Rounds one at a time, and a model folder and mined pairs that are gone."""
    work, _ = finished
    lxsr("train-context", write_config(tmp_path / "run.yaml", documents, rounds=0))
    config = write_config(tmp_path / "run.yaml", documents, rounds=2)
    mine = tmp_path / "run" / "round1"
    mine.mkdir()
    # stopped after mining
    (mine / "mined.tsv").write_bytes((work / "round1" / "mined.tsv").read_bytes())
    said = lxsr("train-context", config).stdout
    assert "round1/mined.tsv: 200 pairs" not in said
    assert "round2/mined.tsv: 200 pairs" in said
    for step in ("stage1", "round1", "round2"):
        name = f"{step}/model/model.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (work / name).read_bytes(), step
    assert (tmp_path / "run" / "round2" / "mined.tsv").read_text() == (
        work / "round2" / "mined.tsv"
    ).read_text()


def test_other_options_and_a_second_run_are_refused(short, documents, short_options, tmp_path):
    work = short
    config = tmp_path / "other.yaml"
    data = {path: path.read_bytes() for path in (work / "data-bin").rglob("*.bin")}
    for option, value, before in (("draw", 50, 100), ("valid_documents", 6, 5)):
        write_config(config, documents, work=str(work), **short_options | {option: value})
        refused(
            lxsr_here("train-context", config, check=False),
            "context.json: ",
            f"{option} is {value}",
            f" {before};",
        )
    write_config(config, documents, work=str(work), **short_options)
    with (work / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write_config(config, documents, work=str(work), **short_options | {"valid_documents": 6})
        refused(lxsr_here("train-context", config, check=False), work)
    (work / "lock").unlink()
    assert data == {path: path.read_bytes() for path in data}


def test_other_text_is_refused(short, documents, short_options, tmp_path):
    shutil.copytree(short, tmp_path / "work")
    changed = {language: tmp_path / file.name for language, file in documents.items()}
    for language, file in changed.items():
        file.write_text(documents[language].read_text() + "\n\nOne more.\nDocument.\n")
    # as if the files had been changed in place
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


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_whose_copy_was_cut_off(short, tmp_path, whole):
    shutil.copytree(short / "stage1" / "checkpoints", tmp_path / "checkpoints")
    last, best = (tmp_path / "checkpoints" / f"checkpoint_{name}.pt" for name in ("last", "best"))
    last.write_bytes(last.read_bytes()[:1000])
    if not whole:
        best.write_bytes(b"")
    restore_last_checkpoint(last)
    assert last.exists() == whole
    assert not whole or last.read_bytes() == best.read_bytes()


def test_the_first_round_can_be_mined_by_another_model_in_pairs_of_any_languages(short, toy_model):
    report = json.loads((short / "rounds.jsonl").read_text())
    assert report["model"] == str(toy_model)
    pairs = []
    for line in (short / "round1" / "mined.tsv").read_text().splitlines():
        columns = line.split("\t")
        pairs.append((columns[2], columns[4]))
    assert {("en", "en"), ("fr", "fr")} < set(pairs)
    assert len(pairs) == 200
