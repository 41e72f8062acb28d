"""The folder for sentence-transformers, loaded by sentence-transformers itself with no code of
ours.
"""

import itertools
import re
import unicodedata
from importlib.util import find_spec

import numpy as np
import pytest
import small_model
import torch
import toy
from conftest import lxsr_here as lxsr
from conftest import python
from random_model import write_model
from spellings import SPELLINGS

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import extended_symbols
from fairseq_lxsr.encoder.model_folder import ST_MODULE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import export_sentence_transformers
from fairseq_lxsr.export.fast_tokenizer import SAMPLE, VOICED, fast_tokenizer
from fairseq_lxsr.export.st_folder import load_folder
from fairseq_lxsr.text.folding import write_folded_rules

# nothing is imported here, where each worker of pytest would
pytestmark = pytest.mark.skipif(
    not find_spec("sentence_transformers"), reason="sentence-transformers is not installed"
)
SENTENCES = [side for pair in toy.sentences(100, seed=9) for side in pair]
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X <mask>"]
WITHOUT_US = """
import sys
sys.modules["fairseq_lxsr"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[2], model.encode(open(sys.argv[3], encoding="utf-8").read().splitlines(), batch_size=7))
"""


@pytest.mark.slow
def test_the_same_vectors_without_our_code(toy_model, tmp_path):
    done = lxsr(
        "export", "sentence-transformers", "--model", toy_model, "--output", tmp_path / "st"
    )
    (difference,) = re.findall(r"\d[\d.]*e-\d+", done.stdout)
    assert float(difference) < 1e-4
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    python(WITHOUT_US, tmp_path / "st", tmp_path / "out.npy", tmp_path / "text", cwd=tmp_path)
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


@pytest.mark.parametrize("pieces", ["bpe", "unigram", "unigram of bytes"])
def test_both_kinds_of_pieces_and_a_dictionary_that_lacks_some(pieces, tmp_path):
    kind, _, of_bytes = pieces.partition(" of ")
    encoder = SentenceEncoder.from_pretrained(
        write_model(tmp_path / "random", kind, bool(of_bytes)), "cpu"
    )
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5


def test_kana_with_voicing_marks_and_korean_letters_have_the_same_pieces(packaged):
    tokenizer = packaged.tokenizer
    fast = fast_tokenizer(tokenizer, extended_symbols(tokenizer, len(tokenizer.symbols)))
    texts = [SAMPLE[-2], *(f"\uff71{text}" for text in VOICED)]
    texts += [text.replace("\u3099", "\uff9e").replace("\u309a", "\uff9f") for text in texts]
    texts += [unicodedata.normalize("NFD", "개가 지붕 위에서 자고 있다. Où est-il ? Σήμερα")]
    # Syllables with a last letter, letters for keyboards, marks in an unusual order
    letters = "\u1112\u1161\u11ab\ud558\u3131\u314f\u0301"
    texts += map("".join, itertools.product(letters, repeat=3))
    texts += ["\u0301\u0323 a\u0301\u0323"]
    assert [encoding.ids for encoding in fast.encode_batch(texts)] == [
        row.tolist() for row in tokenizer.encode(texts)
    ]


@pytest.mark.slow
def test_folded_letters_have_the_same_pieces(tmp_path):
    rules = write_folded_rules(tmp_path)
    model = write_model(tmp_path / "random", "unigram", version=4, rule=rules)
    tokenizer = SentenceEncoder.from_pretrained(model, "cpu").tokenizer
    fast = fast_tokenizer(tokenizer, extended_symbols(tokenizer, len(tokenizer.symbols)))
    texts: list[str] = []
    for text in itertools.chain.from_iterable(SPELLINGS):
        texts += [text, text.upper(), unicodedata.normalize("NFD", text)]
    assert [encoding.tokens for encoding in fast.encode_batch(texts)] == tokenizer.pieces(texts)


@pytest.mark.parametrize("num_layers", [0, 1])
def test_epsilon_of_the_model(num_layers, tmp_path):
    """So large that it matters; a folder with another one is not written."""
    folder = write_model(tmp_path / "random", layer_norm_eps=0.5, num_layers=num_layers)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5


def test_without_layers(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    encoder.model.layers = torch.nn.ModuleList()
    object.__setattr__(encoder.model.config, "num_layers", 0)
    assert export_sentence_transformers(encoder, tmp_path / "st") < 1e-5


@pytest.mark.parametrize("kind", ["bert", "module", "static"])
def test_vectors_of_length_one(kind, toy_model, tmp_path):
    """By each kind of folder; the loader of this package, which needs no flag, keeps the length
    too.
    """
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": int(kind == "module")}
    folder = toy_model if kind == "bert" else write_model(tmp_path / "random", **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize=True) < 1e-5
    found = load_folder(tmp_path / "st", "cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("learnt", [False, True], ids=["mean", "mean, order"])
@pytest.mark.parametrize("layers", [0, 2])
def test_gated_encoders(learnt, layers, tmp_path):
    """A mean of embeddings loads without our code; any other is a module of ours, which `lxsr`
    takes too.
    """
    model = write_model(
        tmp_path / "random", gated=True, num_layers=layers, order_coefficients=int(learnt)
    )
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5
    plain = not (learnt or layers)
    assert (tmp_path / "st" / ST_MODULE).is_dir() is not plain
    (tmp_path / "text").write_text("a dog\n", encoding="utf-8")
    embed = (
        "embed",
        "--input",
        tmp_path / "text",
        "--output",
        tmp_path / "o.npy",
        "--model",
        tmp_path / "st",
    )
    assert (encoder.fingerprint in lxsr(*embed).stdout) is not plain


ORDER = "order"


@pytest.mark.parametrize("form", ["sentence-transformers", "hub"])
@pytest.mark.parametrize(
    ("sizes", "options", "why"),
    [
        ({"num_layers": 1}, (), ""),
        ({"num_layers": 0, "gated": True}, (), ""),
        (
            {"num_layers": 0, "gated": True, "order_coefficients": 1},
            (),
            f"{ORDER}.*--drop-order",
        ),
        ({"num_layers": 0, "gated": True, "order_coefficients": 1}, ("--drop-order",), ""),
        ({"num_layers": 1, "order_coefficients": 1}, (), ORDER),
        ({"num_layers": 1, "gated": True}, (), "gated layers"),
    ],
)
def test_an_export_says_why_its_folder_needs_the_flag(form, sizes, options, why, tmp_path):
    """The card shows the flag where it is needed, and only there."""
    model, output = write_model(tmp_path / "random", **sizes), tmp_path / "st"
    printed = lxsr("export", form, "--model", model, "--output", output, *options).stdout
    notes = printed.splitlines()[1:]
    assert len(notes) == bool(why)
    for note in notes:
        assert re.search(f"{output}.*trust_remote_code=True.*{why}", note)
        assert ("--drop-order" in note) == ("--drop-order" in why)
    assert (output / ST_MODULE).is_dir() is bool(why)
    if form == "hub":
        assert (
            "trust_remote_code=True" in (output / "README.md").read_text(encoding="utf-8")
        ) is bool(why)


@pytest.mark.parametrize("architecture", ["laser", "tlaser", "transformer"])
def test_every_network_is_a_module_that_trains_and_is_saved(architecture, tmp_path):
    """The trainer of sentence-transformers moves the loss in 5 steps; saved and loaded the vectors
    are the same.
    """
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    # imports sentence_transformers
    from fairseq_lxsr.export.st_module import (
        load_sentence_transformer,
    )

    sizes = {"gated": True, "order_coefficients": 1} if architecture == "transformer" else {}
    folder = small_model.write_folder(tmp_path / "model", architecture, **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    export_sentence_transformers(encoder, tmp_path / "st")
    model = SentenceTransformer(
        str(tmp_path / "st"), device="cpu", local_files_only=True, trust_remote_code=True
    )
    np.testing.assert_allclose(model.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)
    np.testing.assert_array_equal(model.encode(["", " "]), np.zeros((2, encoder.output_dim)))
    pairs = Dataset.from_dict(
        dict(zip(("anchor", "positive"), zip(*toy.sentences(40), strict=True), strict=True))
    )
    sizes = {
        "max_steps": 5,
        "per_device_train_batch_size": 16,
        "learning_rate": 0.01,
        "logging_steps": 1,
    }
    how = Arguments(str(tmp_path / "out"), **sizes)
    how.report_to, how.disable_tqdm, how.save_strategy = [], True, "no"
    trainer = SentenceTransformerTrainer(
        model, how, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0], losses
    model.save(str(tmp_path / "again"))
    loaded = load_sentence_transformer(tmp_path / "again", "cpu")
    np.testing.assert_allclose(loaded.encode(SENTENCES), model.encode(SENTENCES), atol=1e-6)
    assert np.abs(model.encode(SENTENCES[:9]) - encoder.encode(SENTENCES[:9])).max() > 1e-3


def test_a_folder_that_another_program_saved_is_not_replaced(tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = SentenceEncoder.from_pretrained(
        write_model(tmp_path / "random", gated=True, num_layers=0), "cpu"
    )
    for _ in range(2):  # our own is
        export_sentence_transformers(encoder, tmp_path / "st")
    SentenceTransformer(str(tmp_path / "st"), device="cpu").save(str(tmp_path / "st"))
    with pytest.raises(InputError, match=r"modules\.json"):
        export_sentence_transformers(encoder, tmp_path / "st")


def test_vectors_that_differ_are_not_exported(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    object.__setattr__(encoder.model.config, "layer_norm_eps", 0.5)  # not that of the layers
    with pytest.raises(ValueError, match="cannot be exported"):
        export_sentence_transformers(encoder, tmp_path / "st")
    assert not (tmp_path / "st").exists()


def test_tokens_and_lengths_by_the_names_of_sentence_transformers(toy_model, tmp_path):
    """A BERT gives a vector for each piece, and a module of ours reads as many pieces as it is
    told.
    """
    from sentence_transformers import SentenceTransformer

    from fairseq_lxsr.export.st_module import load_sentence_transformer

    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    export_sentence_transformers(encoder, tmp_path / "bert")
    bert = SentenceTransformer(str(tmp_path / "bert"), device="cpu")
    text = "the red dog sees the cat"
    tokens = bert.encode([text], output_value="token_embeddings")[0].numpy()
    assert len(tokens) == encoder.split([text])[1][0]
    np.testing.assert_allclose(tokens.mean(axis=0), encoder.encode(text), atol=1e-5)
    bert.max_seq_length = 3
    encoder.max_seq_length = 3
    np.testing.assert_allclose(bert.encode(text), encoder.encode(text), atol=1e-5)
    with pytest.raises(InputError, match="bert"):
        SentenceEncoder.from_pretrained(tmp_path / "bert")

    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1)
    module = load_sentence_transformer(tmp_path / "model", "cpu")
    whole = module.encode(text)
    module.max_seq_length = 2
    assert module.max_seq_length == 2
    assert np.abs(module.encode(text) - whole).max() > 1e-3
    with pytest.raises(InputError, match="max_seq_length is 0"):
        module.max_seq_length = 0


def test_other_backends_than_torch_are_refused_by_the_module(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = small_model.write_folder(tmp_path / "model", gated=True, num_layers=1)
    export_sentence_transformers(SentenceEncoder.from_pretrained(folder, "cpu"), tmp_path / "st")
    with pytest.raises(InputError, match="backend 'onnx'"):
        SentenceTransformer(
            str(tmp_path / "st"), device="cpu", backend="onnx", trust_remote_code=True
        )
