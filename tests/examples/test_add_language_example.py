"""examples/add_language: new pieces, a checkpoint with their vectors, and training that keeps the old ones."""

import argparse
import io
from collections import Counter

import numpy as np
import pytest
import sentencepiece
import small_model
import torch
import toy
from conftest import ROOT, checked, export, load_script, lxsr_here, main_here, refused, train_here, weights
from safetensors.torch import load_file

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import SPLIT_PROBABILITY, read_checkpoint
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE, SENTENCEPIECE_FILE, TextOptions, Tokenizer, read_dictionary

CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}  # no letter of it is in the old text
TABLE, ORDER = "encoder.embed_tokens.weight", "encoder.order"
WIDTH = 16


@pytest.fixture(scope="module")
def extend():
    return load_script(ROOT / "examples" / "add_language" / "extend.py")


def old_checkpoint(folder, num_layers=0):
    """A model with random vectors, and its data folder."""
    data = small_model.write_pieces(folder / "old")
    state = small_model.checkpoint_state(data)
    network = small_model.network(data, embed_dim=WIDTH, num_layers=num_layers, gated=True, order_coefficients=1)
    network.order.data.fill_(0.1)
    state["model"] = {f"encoder.{name}": value for name, value in network.state_dict().items()}
    sizes = {"encoder_layers": num_layers, "gated": True, "order_coefficients": 1}
    state["cfg"]["model"] |= {"_name": "lxsr_best", **sizes}
    state["optimizer_history"][0] |= {"lr_scheduler_state": {"best": None}}
    torch.save(state, folder / "old.pt")
    return folder / "old.pt"


@pytest.fixture(scope="module")
def work(tmp_path_factory, extend):
    """An extended model of English and another language, with a corpus and the old checkpoint."""
    work = tmp_path_factory.mktemp("language")
    pairs = [(source, target.lower().translate(CYRILLIC)) for source, target in toy.sentences(1000)]
    toy.write(work / "text", pairs, ("en", "xx"))
    sizes = ("--valid-size", 100, "--test-size", 100)
    prepare = ("prepare", "--work", work, "--data", work / "text", "--lang-pairs", "en-xx", "--workers", 1, *sizes)
    lxsr_here(*prepare, "--until", "clean")
    corpus = work / "corpus" / "en-xx"
    files = ("--known", corpus / "train.en", "--new", corpus / "train.xx", "--old-text", corpus / "train.en")
    main_here(extend, "--checkpoint", old_checkpoint(work), *files, "--pieces", 60, "--output", work)
    lxsr_here(*prepare)
    return work


def tokenizer(folder):
    symbols = read_dictionary(folder / DICTIONARY_FILE)
    return Tokenizer(folder / SENTENCEPIECE_FILE, TextOptions(lowercase=True), symbols)


def test_old_pieces_keep_their_numbers_and_old_text_its_pieces(work):
    for name in (SENTENCEPIECE_FILE, DICTIONARY_FILE):
        before, after = ((work / folder / name).read_bytes() for folder in ("old", "subwords"))
        assert after.startswith(before)
        assert len(after) > len(before)
    old, new = tokenizer(work / "old"), tokenizer(work / "subwords")
    lines = list(read_lines(work / "corpus" / "en-xx" / "train.en"))
    assert all(map(np.array_equal, old.encode(lines), new.encode(lines)))


def test_new_text_has_no_unknown_pieces_and_longer_ones(work):
    lines = list(read_lines(work / "corpus" / "en-xx" / "test.xx"))
    old, new = tokenizer(work / "old"), tokenizer(work / "subwords")
    ids, lengths = new.encode_flat(lines)
    assert old.unknown in old.encode_flat(lines)[0]
    assert old.unknown not in ids
    assert lengths.sum() < 0.5 * sum(map(len, lines))


def test_pieces_are_those_of_the_merges_by_hand(extend):
    """Of 9 times ▁ a b and 8 times c d; e is rarer than five, and so is ▁ before cd."""
    model = make_pieces(["x y"] * 10)
    words = Counter({"abcd": 6, "ab": 3, "cde": 2})
    assert sorted(extend.learn_pieces(model, words, 4)) == ["a", "b", "c", "d"]
    assert extend.learn_pieces(model, words, 100)[4:] == ["▁a", "▁ab", "cd", "▁abcd"]


def make_pieces(lines, kind="bpe"):
    model = io.BytesIO()
    options = {"model_type": kind, "vocab_size": 6, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.Train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


def test_another_kind_of_pieces_is_refused(extend):
    with pytest.raises(InputError, match="another kind than BPE"):
        extend.learn_pieces(make_pieces(["x y"] * 10, "unigram"), Counter(), 5)


def test_old_rows_are_the_same_bytes_and_mask_is_last(work):
    old, new = (weights(work, name) for name in ("old.pt", "start.pt"))
    count, pieces = (len(read_dictionary(work / name / DICTIONARY_FILE)) for name in ("old", "subwords"))
    assert len(new[TABLE]) == pieces + 1
    assert torch.equal(new[TABLE][:count], old[TABLE][:count])
    assert torch.equal(new[TABLE][-1], old[TABLE][-1])
    assert torch.equal(new[ORDER], old[ORDER])


def test_after_subword_dropout_training_goes_on_from_what_was_exported(extend, work):
    state, symbols = read_checkpoint(work / "old.pt"), read_dictionary(work / "old" / DICTIONARY_FILE)
    state["task_state"][SPLIT_PROBABILITY] = [0.5] * len(symbols)
    exported = torch.rand(len(symbols) + 1, WIDTH)
    found = extend.extended(state, exported, len(symbols), [*symbols, "new"], torch.ones(1, WIDTH))
    assert torch.equal(found["model"][TABLE], torch.cat((exported[:-1], torch.ones(1, WIDTH), exported[-1:])))
    assert SPLIT_PROBABILITY not in found["task_state"]


def test_a_model_with_gated_layers_is_refused(extend, tmp_path):
    old = old_checkpoint(tmp_path, num_layers=1)
    with pytest.raises(InputError, match=r"old\.pt: a model with layers"):
        next(extend.write(argparse.Namespace(checkpoint=old, data=tmp_path / "old")))


def test_first_vectors_find_translations(work, tmp_path):
    export(work / "start.pt", tmp_path / "m", "--data", work / "data-bin")
    encoder = SentenceEncoder.from_pretrained(tmp_path / "m")
    sides = [list(read_lines(work / "corpus" / "en-xx" / f"test.{language}")) for language in ("en", "xx")]
    known, new = (encoder.encode(side, normalize=True) for side in sides)
    assert ((new @ known.T).argmax(axis=1) == np.arange(len(new))).mean() > 0.8


def test_ridge_is_least_squares(extend):
    rng = np.random.default_rng(0)
    dense, targets = (torch.from_numpy(rng.normal(size=size)).float() for size in ((30, 5), (30, 3)))
    found = extend.ridge(dense.nonzero().T, dense.flatten(), targets, 5)
    expected = torch.linalg.solve(dense.T @ dense + extend.RIDGE * torch.eye(5), dense.T @ targets)
    torch.testing.assert_close(found, expected)


def go_on(work, save_dir, *flags, **options):
    sizes = {"arch": "lxsr_best", "encoder_embed_dim": WIDTH, "max_positions": 40, "objective": "none"}
    weights = {"gen_weight": 0, "sim_weight": 0, "align_similarity": "cosine", "align_temperature": 0.1}
    run = {"optimizer": "torch_adam", "weight_decay": 0.1, "finetune_from_model": work / "start.pt", "max_update": 3}
    words = {name: str(value) for name, value in (sizes | weights | run | options).items()}
    return train_here(work / "data-bin", save_dir, "--disable-validation", "--no-epoch-checkpoints", *flags, **words)


@pytest.mark.parametrize("decay", [(), ("--decoupled-weight-decay",)])
def test_frozen_pieces_do_not_move(work, tmp_path, decay):
    count = len(read_dictionary(work / "old" / DICTIONARY_FILE))
    before = weights(work, "start.pt")
    moved = {}
    for name, options in (("free", {}), ("frozen", {"frozen_pieces": count})):
        checked(go_on(work, tmp_path / name, *decay, **options))
        after = weights(tmp_path / name)
        same = (after[TABLE] == before[TABLE]).all(dim=1)
        moved[name] = (~same[4:count]).any(), (~same[count:-1]).any(), not torch.equal(after[ORDER], before[ORDER])
    assert moved == {"free": (True, True, True), "frozen": (False, True, False)}


def test_subword_dropout_spares_frozen_pieces(work, tmp_path):
    count = len(read_dictionary(work / "old" / DICTIONARY_FILE))
    checked(go_on(work, tmp_path, frozen_pieces=count, subword_dropout=0.5))
    export(tmp_path / "checkpoint_last.pt", tmp_path / "m", "--data", work / "data-bin")
    before = weights(work, "start.pt")[TABLE]
    trained = weights(tmp_path)[TABLE]
    rows = load_file(tmp_path / "m" / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(rows[4:count], before[4:count])
    assert not torch.allclose(rows[count:-1], trained[count:-1])


def test_old_pieces_that_the_new_text_lacks_keep_their_rows(work, tmp_path):
    checked(go_on(work, tmp_path, rare_subword_dropout=30))
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert not any(state["task_state"][SPLIT_PROBABILITY])


@pytest.mark.parametrize("more", [0, 1, 90_000])
def test_all_pieces_frozen_is_refused(work, tmp_path, more):
    count = len(read_dictionary(work / "data-bin" / "dict.en.txt")) + more
    refused(go_on(work, tmp_path, frozen_pieces=count), f"--frozen-pieces {count:,}: the dictionary has")
