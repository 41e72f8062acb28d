"""`lxsr train --from`: new pieces start with rows of a regression, and old rows stay as they are."""

import json
import shutil

import numpy as np
import pytest
import small_model
import torch
import toy
from conftest import (
    assert_same_weights,
    checked,
    export,
    lxsr_here,
    refused,
    train_here,
    weights,
)
from safetensors.numpy import load_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import SPLIT_PROBABILITY, read_checkpoint
from fairseq_lxsr.encoder.starting_model import new_languages, open_starting_model, starting_options
from fairseq_lxsr.encoder.torch_network import save_folder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE, SENTENCEPIECE_FILE, read_dictionary
from fairseq_lxsr.training.lightweight.start import RIDGE, FlatText, new_rows, ridge
from fairseq_lxsr.training.pairs import PairCorpus

# A table for str.translate: the old text has no Cyrillic letters.
CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}
TABLE = "encoder.embed_tokens.weight"
ORDER = "encoder.order"
WIDTH = 16
LOSS = {
    "objective": "none",
    "gen_weight": 0,
    "sim_weight": 0,
    "align_similarity": "cosine",
    "align_temperature": 0.1,
}


def write_model(folder, dtype="float32"):
    """Random vectors of English and French, with the order of pieces and short embeddings."""
    data = small_model.write_pieces(folder.parent / "pieces")
    sizes = {
        "embed_dim": WIDTH,
        "num_layers": 0,
        "gated": True,
        "order_coefficients": 1,
        "max_positions": 40,
    }
    network = small_model.network(data, **sizes)
    network.order.data.fill_(0.1)
    training = {"lang_pairs": "en-fr", "options": {"matryoshka": "8,16"}}
    save_folder(
        folder,
        network,
        data / DICTIONARY_FILE,
        data / SENTENCEPIECE_FILE,
        small_model.TEXT,
        training,
        dtype,
    )
    return folder


@pytest.fixture(scope="module", params=["float32", pytest.param("int4", marks=pytest.mark.slow)])
def work(request, tmp_path_factory):
    """A model, and text of a new language prepared for it."""
    work = tmp_path_factory.mktemp(request.param)
    model = write_model(work / "old", request.param)
    pairs = [(source, target.lower().translate(CYRILLIC)) for source, target in toy.sentences(1000)]
    toy.write(work / "text", pairs, ("en", "xx"))
    files = ("--work", work, "--data", work / "text", "--lang-pairs", "en-xx")
    sizes = ("--new-pieces", 60, "--valid-size", 100, "--test-size", 100)
    lxsr_here("prepare", "--from-model", model, *files, *sizes, "--workers", 1)
    return work


def train_from_model(work, save_dir, *flags, **changes):
    """Train for a few updates with the options that `lxsr train --from` gives, and changes."""
    options = {}
    for name, value in starting_options(str(work / "old"), work / "data-bin").items():
        if value is not False:
            options[name.replace("-", "_")] = value
    options |= LOSS | {"arch": "lxsr_best", "optimizer": "torch_adam"}
    options |= {"weight_decay": 0.1, "max_update": 3} | changes
    words = {name: str(value) for name, value in options.items() if value is not None}
    flags = ("--disable-validation", "--no-epoch-checkpoints", *flags)
    return train_here(work / "data-bin", save_dir, *flags, **words)


def export_run(work, save_dir, folder, *options):
    export(save_dir / "checkpoint_last.pt", folder, "--data", work / "data-bin", *options)
    return SentenceEncoder.from_pretrained(folder)


def stored_table(folder):
    return load_file(folder / "model.safetensors")["embed_tokens.weight"]


def num_old_pieces(work) -> int:
    return len(read_dictionary(work / "old" / DICTIONARY_FILE))


def test_the_starting_options_are_the_sizes_of_the_model(work):
    assert starting_options(str(work / "old"), work / "data-bin") == {
        "from-model": str(work / "old"),
        "encoder-embed-dim": WIDTH,
        "order-coefficients": 1,
        "max-positions": 40,
        "matryoshka": "8,16",
        "frozen-pieces": num_old_pieces(work),
    }


def test_frozen_rows_are_refused_with_weights_of_16_bits(work, tmp_path):
    done = train_from_model(work, tmp_path / "run", "--memory-efficient-fp16", optimizer="adam")
    refused(done, "--frozen-pieces", "--fp16")


@pytest.mark.parametrize(
    "decay", [pytest.param((), marks=pytest.mark.slow), ("--decoupled-weight-decay",)]
)
def test_frozen_rows_and_embeddings_of_old_pieces_keep_every_bit(work, tmp_path, decay):
    old = SentenceEncoder.from_pretrained(work / "old")
    count = num_old_pieces(work)
    old_rows = torch.from_numpy(old.weights["embed_tokens.weight"][:count])
    old_order = torch.from_numpy(old.weights["order"])

    checked(train_from_model(work, tmp_path / "free", *decay, frozen_pieces=None))
    trained = weights(tmp_path / "free")
    assert not torch.equal(trained[TABLE][4:count], old_rows[4:])
    assert not torch.equal(trained[ORDER], old_order)

    checked(train_from_model(work, tmp_path / "frozen", *decay))
    trained = weights(tmp_path / "frozen")
    assert torch.equal(trained[TABLE][4:count], old_rows[4:])
    assert torch.equal(trained[ORDER], old_order)

    new = export_run(work, tmp_path / "frozen", tmp_path / "new", "--dtype", "float32")
    assert np.array_equal(stored_table(tmp_path / "new")[:count], old_rows.numpy())
    lines = list(read_lines(work / "corpus" / "en-xx" / "test.en"))
    assert np.array_equal(new.encode(lines), old.encode(lines))


@pytest.fixture(scope="module")
def exported(work, tmp_path_factory):
    """The folder of the model after one update, in the type of weights of the starting model."""
    folder = tmp_path_factory.mktemp("exported")
    checked(train_from_model(work, folder / "run", max_update=1))
    export_run(work, folder / "run", folder / "new")
    return folder / "new"


def test_exported_weights_have_the_type_of_the_starting_model(work, exported):
    assert stored_table(exported).dtype == stored_table(work / "old").dtype


def test_stored_rows_of_old_pieces_are_exported_bit_by_bit(work, exported):
    """Those of int4 are codes, which a second rounding could change."""
    count = num_old_pieces(work)

    assert np.array_equal(stored_table(exported)[:count], stored_table(work / "old")[:count])


def test_exported_rows_of_old_pieces_are_read_as_those_of_the_starting_model(work, exported):
    """Those of int4 are read from their codes and scales."""
    count = num_old_pieces(work)

    rows = SentenceEncoder.from_pretrained(exported).weights["embed_tokens.weight"]

    old_rows = SentenceEncoder.from_pretrained(work / "old").weights["embed_tokens.weight"]
    np.testing.assert_allclose(rows[:count], old_rows[:count], rtol=1e-6)


def test_the_first_rows_of_new_pieces_find_translations(work, tmp_path):
    # A learning rate of 0 leaves the first rows as they are.
    options = {"lr": 0, "weight_decay": 0, "rare_subword_dropout": 30, "max_update": 1}
    checked(train_from_model(work, tmp_path, **options))
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert not any(state["task_state"][SPLIT_PROBABILITY])
    encoder = export_run(work, tmp_path, tmp_path / "new")
    english = list(read_lines(work / "corpus" / "en-xx" / "test.en"))
    new_language = list(read_lines(work / "corpus" / "en-xx" / "test.xx"))
    english_rows = encoder.encode(english, normalize=True)
    new_rows = encoder.encode(new_language, normalize=True)
    nearest = (new_rows @ english_rows.T).argmax(axis=1)
    # By chance, one in a hundred would be right.
    assert (nearest == np.arange(len(nearest))).mean() > 0.8
    training = json.loads((tmp_path / "new" / "config.json").read_text())["training"]
    assert (training["lang_pairs"], training["finetuned"]) == ("en-fr,en-xx", True)
    assert new_languages(encoder, ["en-xx", "fr-cs"], "m") == ["cs"]


@pytest.mark.slow
def test_an_interrupted_training_is_continued_to_the_same_weights(work, tmp_path):
    checked(train_from_model(work, tmp_path / "whole", max_update=4))
    checked(train_from_model(work, tmp_path / "interrupted", max_update=2))
    checked(train_from_model(work, tmp_path / "interrupted", max_update=4))
    assert_same_weights(tmp_path / "whole", tmp_path / "interrupted")


def test_sizes_and_text_of_another_model_are_refused(work, tmp_path, toy_work):
    done = train_from_model(work, tmp_path / "run", encoder_embed_dim=32)
    refused(done, work / "old", "embed_dim 16, not 32")
    data = toy_work / "data-bin"
    done = lxsr_here("train", data, "--from", work / "old", "--print", check=False)
    refused(done, work / "old", "lxsr prepare --from-model")
    done = lxsr_here("train", data, check=False)
    refused(done, "--recipe", "or --from MODEL")


def test_the_learning_rate_depends_on_whether_there_are_new_pieces(work, tmp_path):
    def printed_command(data, *flags):
        words = ("train", data, "--from", work / "old", "--cpu", "--print", *flags)
        return lxsr_here(*words).stdout

    command = printed_command(work / "data-bin")
    assert f"--frozen-pieces {num_old_pieces(work)} " in command
    assert "--lr 0.02 " in command
    command = printed_command(work / "data-bin", "--no-frozen-pieces")
    assert "--frozen-pieces" not in command
    # The text of a new domain has the dictionary of the model.
    data = shutil.copytree(work / "data-bin", tmp_path / "domain")
    for path in data.glob("dict.*.txt"):
        shutil.copy(work / "old" / DICTIONARY_FILE, path)
    command = printed_command(data)
    assert "--frozen-pieces" not in command
    assert "--lr 0.0004 " in command


def test_a_model_with_layers_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/layers has layers"):
        open_starting_model(small_model.write_folder(tmp_path / "layers"))


def test_ridge_is_the_solution_of_the_normal_equations():
    rng = np.random.default_rng(0)
    dense = torch.from_numpy(rng.normal(size=(30, 5))).float()
    targets = torch.from_numpy(rng.normal(size=(30, 3))).float()
    expected = torch.linalg.solve(dense.T @ dense + RIDGE * torch.eye(5), dense.T @ targets)
    torch.testing.assert_close(ridge(dense.to_sparse_csr(), targets), expected)


def sentences_of(*lists):
    """Sentences of ids, with EOS."""
    return [torch.tensor([*ids, 2]) for ids in lists]


@pytest.mark.parametrize("new_side_is_first", [False, True])
def test_new_rows_solve_the_equations_written_out_by_hand(new_side_is_first):
    table = torch.arange(14.0).reshape(7, 2) / 10
    old_side = sentences_of([4, 5], [6], [4])
    # The last pair has an empty side, which adds no equation.
    new_side = sentences_of([7, 7, 4], [8], [])
    if new_side_is_first:
        pairs = PairCorpus("en-xx", new_side, old_side)
    else:
        pairs = PairCorpus("en-xx", old_side, new_side)
    rows = new_rows(table, 10, [pairs])
    # sqrt(3) (2/3 w7 + 1/3 t4) = sqrt(3) (t4 + t5) / 2 and w8 = t6, for new rows w and old rows t.
    matrix = np.array([[3**0.5 * 2 / 3, 0], [0, 1]])
    first_target = 3**0.5 * ((table[4] + table[5]) / 2 - table[4] / 3)
    targets = torch.stack((first_target, table[6])).numpy()
    expected = np.linalg.solve(matrix.T @ matrix + RIDGE * np.eye(2), matrix.T @ targets)
    torch.testing.assert_close(rows[:2], torch.from_numpy(expected).float())
    # A piece that the text lacks gets the row of <unk>.
    torch.testing.assert_close(rows[2:], table[3:4])


def test_a_text_without_new_pieces_gives_no_rows():
    corpus = PairCorpus("en-fr", sentences_of([4]), sentences_of([5]))
    assert new_rows(torch.ones(6, 2), 6, [corpus]).shape == (0, 2)


def test_weights_of_equal_ids_of_a_sentence_are_added():
    text = FlatText(np.array([0, 0, 2]), np.array([2, 1]))
    matrix = text.matrix(np.array([True, True, True]), np.array([0.5, 1.0]), 3).to_dense()
    assert matrix.tolist() == [[1, 0, 0], [0, 0, 1]]
