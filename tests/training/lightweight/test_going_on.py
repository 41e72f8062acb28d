"""`lxsr train --from`: the rows of a model, first rows of new pieces by regression, and training
that keeps the old.
"""

import json
import shutil

import numpy as np
import pytest
import small_model
import torch
import toy
from conftest import checked, export, lxsr_here, refused, train_here, weights
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

# no letter of it is in the old text
CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}
TABLE, ORDER = "encoder.embed_tokens.weight", "encoder.order"
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
    words = (
        "--work",
        work,
        "--data",
        work / "text",
        "--lang-pairs",
        "en-xx",
        "--workers",
        1,
        "--new-pieces",
        60,
    )
    lxsr_here("prepare", "--from-model", model, *words, "--valid-size", 100, "--test-size", 100)
    return work


def go_on(work, save_dir, *flags, **options):
    """Train for a few updates with the options that `lxsr train --from` gives."""
    start = starting_options(str(work / "old"), work / "data-bin")
    given = {name.replace("-", "_"): value for name, value in start.items() if value is not False}
    run = {"arch": "lxsr_best", "optimizer": "torch_adam", "weight_decay": 0.1, "max_update": 3}
    words = {
        name: str(value)
        for name, value in (given | LOSS | run | options).items()
        if value is not None
    }
    return train_here(
        work / "data-bin",
        save_dir,
        "--disable-validation",
        "--no-epoch-checkpoints",
        *flags,
        **words,
    )


def count_old(work) -> int:
    return len(read_dictionary(work / "old" / DICTIONARY_FILE))


def test_the_options_are_the_sizes_of_the_model(work):
    sizes = {
        "encoder-embed-dim": WIDTH,
        "order-coefficients": 1,
        "max-positions": 40,
        "matryoshka": "8,16",
    }
    expected = {"from-model": str(work / "old"), **sizes, "frozen-pieces": count_old(work)}
    assert starting_options(str(work / "old"), work / "data-bin") == expected


def test_frozen_rows_are_not_rounded_to_16_bits(work, tmp_path):
    done = go_on(work, tmp_path / "run", "--memory-efficient-fp16", optimizer="adam")
    refused(done, "--frozen-pieces", "--fp16")


@pytest.mark.parametrize(
    "decay", [pytest.param((), marks=pytest.mark.slow), ("--decoupled-weight-decay",)]
)
def test_old_rows_stay_to_the_last_bit(work, tmp_path, decay):
    old, count = SentenceEncoder.from_pretrained(work / "old").weights, count_old(work)
    moved = {}
    for name, options in (("free", {"frozen_pieces": None}), ("frozen", {})):
        checked(go_on(work, tmp_path / name, *decay, **options))
        after = weights(tmp_path / name)
        table = torch.from_numpy(old["embed_tokens.weight"])
        same = torch.equal(after[TABLE][4:count], table[4:count])
        moved[name] = same, torch.equal(after[ORDER], torch.from_numpy(old["order"]))
    assert moved == {"free": (False, False), "frozen": (True, True)}
    checkpoint = tmp_path / "frozen" / "checkpoint_last.pt"
    export(checkpoint, tmp_path / "m", "--data", work / "data-bin", "--dtype", "float32")
    rows = load_file(tmp_path / "m" / "model.safetensors")["embed_tokens.weight"]
    assert np.array_equal(rows[:count], old["embed_tokens.weight"][:count])
    lines = list(read_lines(work / "corpus" / "en-xx" / "test.en"))
    before, after = (
        SentenceEncoder.from_pretrained(folder).encode(lines)
        for folder in (work / "old", tmp_path / "m")
    )
    assert np.array_equal(before, after)


def test_the_exported_weights_have_the_type_of_the_starting_model(work, tmp_path):
    """Old pieces keep their stored embeddings, as new pieces get codes and scales of their own."""
    checked(go_on(work, tmp_path / "run", max_update=1))
    export(tmp_path / "run" / "checkpoint_last.pt", tmp_path / "m", "--data", work / "data-bin")
    name = "embed_tokens.weight"
    before, after = (
        load_file(folder / "model.safetensors")[name] for folder in (work / "old", tmp_path / "m")
    )
    assert after.dtype == before.dtype
    count = count_old(work)
    assert np.array_equal(after[:count], before[:count])
    rows = [
        SentenceEncoder.from_pretrained(folder).weights[name][:count]
        for folder in (work / "old", tmp_path / "m")
    ]
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-6)


def test_first_rows_find_translations(work, tmp_path):
    """A learning rate of 0 leaves what training began with; decay and dropout of pieces change
    nothing of it either.
    """
    run = {"lr": 0, "weight_decay": 0, "rare_subword_dropout": 30, "max_update": 1}
    checked(go_on(work, tmp_path, **run))
    assert not any(
        read_checkpoint(tmp_path / "checkpoint_last.pt")["task_state"][SPLIT_PROBABILITY]
    )
    export(tmp_path / "checkpoint_last.pt", tmp_path / "m", "--data", work / "data-bin")
    encoder = SentenceEncoder.from_pretrained(tmp_path / "m")
    sides = [
        list(read_lines(work / "corpus" / "en-xx" / f"test.{language}"))
        for language in ("en", "xx")
    ]
    known, new = (encoder.encode(side, normalize=True) for side in sides)
    assert ((new @ known.T).argmax(axis=1) == np.arange(len(new))).mean() > 0.8
    training = json.loads((tmp_path / "m" / "config.json").read_text())["training"]
    assert (training["lang_pairs"], training["finetuned"]) == ("en-fr,en-xx", True)
    assert new_languages(encoder, ["en-xx", "fr-cs"], "m") == ["cs"]


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_weights(work, tmp_path):
    checked(go_on(work, tmp_path / "whole", max_update=4))
    checked(go_on(work, tmp_path / "parts", max_update=2))
    checked(go_on(work, tmp_path / "parts", max_update=4))
    whole, parts = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


def test_other_sizes_and_other_text_are_refused(work, tmp_path, toy_work):
    refused(
        go_on(work, tmp_path / "a", encoder_embed_dim=32),
        work / "old",
        "embed_dim 16, not 32",
    )
    found = lxsr_here(
        "train", toy_work / "data-bin", "--from", work / "old", "--print", check=False
    )
    refused(found, work / "old", "lxsr prepare --from-model")
    refused(lxsr_here("train", toy_work / "data-bin", check=False), "--recipe", "or --from MODEL")


def test_the_recipe_is_that_of_what_is_new(work, tmp_path):
    said = lxsr_here("train", work / "data-bin", "--from", work / "old", "--cpu", "--print").stdout
    assert f"--frozen-pieces {count_old(work)} " in said
    assert "--lr 0.02 " in said
    free = lxsr_here(
        "train", work / "data-bin", "--from", work / "old", "--cpu", "--print", "--no-frozen-pieces"
    ).stdout
    assert "--frozen-pieces" not in free
    shutil.copytree(work / "data-bin", tmp_path / "same")
    for path in tmp_path.glob("same/dict.*.txt"):
        shutil.copy(work / "old" / DICTIONARY_FILE, path)
    domain = lxsr_here(
        "train", tmp_path / "same", "--from", work / "old", "--cpu", "--print"
    ).stdout
    assert "--frozen-pieces" not in domain
    assert "--lr 0.0004 " in domain


def test_a_model_with_layers_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/layers has layers"):
        open_starting_model(small_model.write_folder(tmp_path / "layers"))


def test_ridge_is_least_squares():
    rng = np.random.default_rng(0)
    dense, targets = (
        torch.from_numpy(rng.normal(size=size)).float() for size in ((30, 5), (30, 3))
    )
    expected = torch.linalg.solve(dense.T @ dense + RIDGE * torch.eye(5), dense.T @ targets)
    torch.testing.assert_close(ridge(dense.to_sparse_csr(), targets), expected)


class Sentences(list):
    """What `read_rows` takes: ids, EOS at the end."""

    def __init__(self, sentences):
        super().__init__(torch.tensor([*ids, 2]) for ids in sentences)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_are_those_of_the_equations_by_hand(turned):
    """The new language may be either side; a pair with an empty side says nothing, and a piece of
    no text is <unk>.
    """
    table = torch.arange(14.0).reshape(7, 2) / 10
    known, new = [[4, 5], [6], [4]], [[7, 7, 4], [8], []]
    sides = (Sentences(new), Sentences(known)) if turned else (Sentences(known), Sentences(new))
    found = new_rows(table, 10, [PairCorpus("en-xx", *sides)])
    # sqrt(3) (2/3 w7 + 1/3 t4) = sqrt(3) (t4 + t5) / 2 and w8 = t6, with w^2 added to the squares
    matrix = np.array([[3**0.5 * 2 / 3, 0], [0, 1]])
    targets = np.stack(
        (3**0.5 * ((table[4] + table[5]) / 2 - table[4] / 3).numpy(), table[6].numpy())
    )
    expected = np.linalg.solve(matrix.T @ matrix + RIDGE * np.eye(2), matrix.T @ targets)
    torch.testing.assert_close(found, torch.cat((torch.from_numpy(expected).float(), table[3:4])))


def test_no_new_pieces_no_rows():
    corpus = PairCorpus("en-fr", Sentences([[4]]), Sentences([[5]]))
    assert new_rows(torch.ones(6, 2), 6, [corpus]).shape == (0, 2)


def test_a_matrix_has_the_sum_of_equal_ids():
    text = FlatText(np.array([0, 0, 2]), np.array([2, 1]))
    found = text.matrix(np.array([True, True, True]), np.array([0.5, 1.0]), 3).to_dense()
    assert found.tolist() == [[1, 0, 0], [0, 0, 1]]
