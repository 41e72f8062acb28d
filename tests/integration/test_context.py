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

# Options of all runs: in each of two rounds, 200 pairs are mined.
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
def test_every_step_is_printed(finished_run):
    _, output = finished_run

    for fragment in ("stage1: ", "accuracy 0.", "round1/mined.tsv: 200 pairs", "round2/model: "):
        assert fragment in output, fragment


@pytest.mark.slow
def test_every_step_trains_as_many_updates_as_it_has_printed(finished_run):
    """At the last of them, the learning rate has fallen to zero."""
    work, output = finished_run

    printed = dict(re.findall(r"(\w+): training, (\d+) updates", output))

    assert set(printed) == {"stage1", "round1", "round2"}
    for step, updates in printed.items():
        log = (work / step / "train.log").read_text()
        assert re.findall(r"num_updates (\d+)", log)[-1] == updates


@pytest.mark.slow
def test_every_round_has_a_report_of_its_mined_pairs(finished_run):
    work, _ = finished_run

    reports = [json.loads(line) for line in (work / "rounds.jsonl").read_text().splitlines()]

    assert [report["round"] for report in reports] == ["round1", "round2"]
    for report in reports:
        assert report["pairs"] == 200
        assert report["mean cosine"] > 0
        # The share of pairs that are in the gold file.
        assert 0 <= report["precision"] <= 1
        # Each draw has the best 50 pairs, so that 200 need four.
        assert report["seconds"]["draws"] >= 4


@pytest.mark.slow
def test_the_first_stage_learns_to_find_neighbouring_sentences(finished_run):
    work, _ = finished_run

    log = (work / "stage1" / "train.log").read_text()

    accuracies = [float(value) for value in re.findall(r"\| accuracy (\S+)", log)]
    # Chance is 0.5.
    assert max(accuracies) > 0.55


@pytest.mark.slow
@pytest.mark.parametrize(("step", "previous_step"), [("round1", "stage1"), ("round2", "round1")])
def test_labels_are_the_cosines_of_the_encoder_of_the_previous_step(
    finished_run, step, previous_step
):
    work, _ = finished_run
    encoder = SentenceEncoder.from_pretrained(work / previous_step / "model")
    texts = {language: Lines(work / "documents" / f"train.{language}") for language in ("en", "fr")}

    # Every twentieth pair.
    for line in (work / step / "mined.tsv").read_text().splitlines()[::20]:
        # Score, label, then language and line of both sides, and their sentences.
        _, label, *places, source, target = line.split("\t")
        source_language, source_line, target_language, target_line = places
        assert source == texts[source_language][int(source_line)]
        assert target == texts[target_language][int(target_line)]
        vectors = encoder.encode([source, target], normalize=True)
        assert float(label) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)


@pytest.mark.slow
def test_a_round_continues_from_the_weights_of_the_previous_step(finished_run):
    work, _ = finished_run
    tables = []
    for step in ("stage1", "round1", "round2"):
        tables.append(weights(work / step / "checkpoints")["encoder.embed_tokens.weight"])

    for before, after in itertools.pairwise(tables):
        assert not torch.equal(before, after)
        # Without the four special symbols.
        assert torch.cosine_similarity(before[4:], after[4:]).mean() > 0.9


@pytest.fixture
def model_of_run(finished_run):
    """The model folder of the last round."""
    work, _ = finished_run
    return work / "round2" / "model"


@pytest.mark.slow
def test_the_model_embeds_text(model_of_run, tmp_path):
    toy.write(tmp_path / "test", toy.sentences(100, seed=9))
    output = tmp_path / "en.npy"

    lxsr_here("embed", "--model", model_of_run, "--input", tmp_path / "test.en", "--output", output)

    # 32 numbers of the mean and 32 of the maximum.
    assert np.load(output).shape == (100, 32 + 32)


@pytest.mark.slow
def test_the_model_is_evaluated(model_of_run, tmp_path):
    toy.write(tmp_path / "test", toy.sentences(100, seed=9))
    files = ("--source", tmp_path / "test.en", "--target", tmp_path / "test.fr")

    result = lxsr_here("eval", "xsr", "--model", model_of_run, *files)

    assert "nn P@1" in result.stdout


@pytest.mark.slow
def test_the_model_is_exported_for_sentence_transformers(model_of_run, tmp_path):
    options = ("--model", model_of_run, "--output", tmp_path / "out")

    lxsr_here("export", "sentence-transformers", *options)

    assert (tmp_path / "out" / "modules.json").exists()


@pytest.mark.slow
def test_the_model_is_not_exported_to_onnx_which_lacks_its_pooling(model_of_run, tmp_path):
    options = ("--model", model_of_run, "--output", tmp_path / "out")

    result = lxsr_here("export", "onnx", *options, check=False)

    refused(result, "mean_max")


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_mined_pairs_and_weights(
    finished_run, documents, tmp_path
):
    work, _ = finished_run
    # The first stage alone, and the mined pairs of the first round: as if it had stopped there.
    lxsr("train-context", write_config(tmp_path / "run.yaml", documents, rounds=0))
    (tmp_path / "run" / "round1").mkdir()
    shutil.copy(work / "round1" / "mined.tsv", tmp_path / "run" / "round1")

    config = write_config(tmp_path / "run.yaml", documents, rounds=2)
    output = lxsr("train-context", config).stdout

    assert "round1/mined.tsv: 200 pairs" not in output
    assert "round2/mined.tsv: 200 pairs" in output
    for step in ("stage1", "round1", "round2"):
        name = f"{step}/model/model.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (work / name).read_bytes(), step
    mined = (tmp_path / "run" / "round2" / "mined.tsv").read_text()
    assert mined == (work / "round2" / "mined.tsv").read_text()


@pytest.fixture
def run_again(short_run, documents, short_options, tmp_path):
    """A function that runs in the work folder of the short run, with changed options."""

    def run(**options):
        options = {"work": str(short_run)} | short_options | options
        config = write_config(tmp_path / "other.yaml", documents, **options)
        return lxsr_here("train-context", config, check=False)

    return run


@pytest.mark.parametrize(
    ("option", "value", "value_of_run"), [("draw", 50, 100), ("valid_documents", 6, 5)]
)
def test_a_run_is_not_continued_with_another_option_and_its_data_stay(
    run_again, short_run, option, value, value_of_run
):
    data = {path: path.read_bytes() for path in (short_run / "data-bin").rglob("*.bin")}

    result = run_again(**{option: value})

    refused(result, "context.json: ", f"{option} is {value}", f" {value_of_run};")
    assert data == {path: path.read_bytes() for path in data}


def test_a_work_folder_in_use_by_another_run_is_refused(run_again, short_run):
    with (short_run / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        result = run_again()
    (short_run / "lock").unlink()

    refused(result, short_run)


def test_a_run_is_not_continued_with_changed_text_and_its_files_stay(
    short_run, documents, short_options, tmp_path
):
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
    files = {path: path.read_bytes() for path in (tmp_path / "work").rglob("*") if path.is_file()}

    result = lxsr_here("train-context", config, check=False)

    # The checksums of both texts.
    refused(result, "context.json: text is ", f"{record['text']!r}")
    assert files == {path: path.read_bytes() for path in files}


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
def test_a_configuration_with_a_wrong_value_is_refused_before_training(
    documents, tmp_path, options, fragments
):
    config = write_config(tmp_path / "run.yaml", documents, **options)

    result = lxsr_here("train-context", config, check=False)

    refused(result, *fragments)
    assert not (tmp_path / "run" / "stage1").exists()


@pytest.fixture
def damaged_last(short_run, tmp_path):
    """A damaged last checkpoint, with the best checkpoint of the same training beside it."""
    shutil.copytree(short_run / "stage1" / "checkpoints", tmp_path / "checkpoints")
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    return last


def test_a_damaged_last_checkpoint_is_replaced_by_the_best(damaged_last):
    best = damaged_last.with_name("checkpoint_best.pt").read_bytes()

    restore_last_checkpoint(damaged_last)

    assert damaged_last.read_bytes() == best


def test_a_damaged_last_checkpoint_is_removed_if_the_best_is_damaged_too(damaged_last):
    damaged_last.with_name("checkpoint_best.pt").write_bytes(b"")

    restore_last_checkpoint(damaged_last)

    assert not damaged_last.exists()


def test_another_model_may_mine_the_first_round(short_run, toy_model):
    report = json.loads((short_run / "rounds.jsonl").read_text())

    assert report["model"] == str(toy_model)


def test_pairs_of_any_languages_are_mined_also_within_a_language(short_run):
    languages = []
    for line in (short_run / "round1" / "mined.tsv").read_text().splitlines():
        _, _, source_language, _, target_language, *_ = line.split("\t")
        languages.append((source_language, target_language))

    assert {("en", "en"), ("fr", "fr")} < set(languages)
    assert len(languages) == OPTIONS["pairs"]
