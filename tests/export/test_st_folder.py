"""The folder for sentence-transformers, loaded by sentence-transformers without this package."""

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

# The library is not imported here, because each worker of pytest would need seconds for it.
pytestmark = pytest.mark.skipif(
    not find_spec("sentence_transformers"), reason="sentence-transformers is not installed"
)
SENTENCES = toy.lines(100, seed=9)
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X <mask>"]
WITHOUT_PACKAGE = """
import sys
sys.modules["fairseq_lxsr"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[2], model.encode(open(sys.argv[3], encoding="utf-8").read().splitlines(), batch_size=7))
"""


@pytest.mark.slow
def test_the_folder_gives_the_same_vectors_without_this_package(toy_model, tmp_path):
    options = ("--model", toy_model, "--output", tmp_path / "st")
    done = lxsr("export", "sentence-transformers", *options)
    (difference,) = re.findall(r"\d[\d.]*e-\d+", done.stdout)
    assert float(difference) < 1e-4
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    python(WITHOUT_PACKAGE, tmp_path / "st", tmp_path / "out.npy", tmp_path / "text", cwd=tmp_path)
    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("pieces", "byte_fallback"), [("bpe", False), ("unigram", False), ("unigram", True)]
)
def test_models_with_pieces_outside_the_dictionary_are_exported(pieces, byte_fallback, tmp_path):
    model = write_model(tmp_path / "random", pieces, byte_fallback)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5


def test_kana_with_voicing_marks_and_korean_letters_have_the_same_pieces(packaged):
    tokenizer = packaged.tokenizer
    fast = fast_tokenizer(tokenizer, extended_symbols(tokenizer, len(tokenizer.symbols)))
    texts = [SAMPLE[-2], *(f"\uff71{text}" for text in VOICED)]
    texts += [text.replace("\u3099", "\uff9e").replace("\u309a", "\uff9f") for text in texts]
    texts += [unicodedata.normalize("NFD", "개가 지붕 위에서 자고 있다. Où est-il ? Σήμερα")]
    # Syllables with a final consonant, compatibility jamo, and marks in an unusual order.
    letters = "\u1112\u1161\u11ab\ud558\u3131\u314f\u0301"
    texts += map("".join, itertools.product(letters, repeat=3))
    texts += ["\u0301\u0323 a\u0301\u0323"]
    expected = [ids.tolist() for ids in tokenizer.encode(texts)]
    assert [encoding.ids for encoding in fast.encode_batch(texts)] == expected


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
def test_the_folder_has_the_layer_norm_eps_of_the_model(num_layers, tmp_path):
    """The value is so large that another one would change the vectors, and stop the export."""
    folder = write_model(tmp_path / "random", layer_norm_eps=0.5, num_layers=num_layers)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5


def test_an_ungated_model_without_layers_is_exported(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    encoder.model.layers = torch.nn.ModuleList()
    object.__setattr__(encoder.model.config, "num_layers", 0)
    assert export_sentence_transformers(encoder, tmp_path / "st") < 1e-5


@pytest.mark.parametrize("kind", ["bert", "module", "static"])
def test_every_kind_of_folder_can_normalize_vectors(kind, toy_model, tmp_path):
    """`load_folder` of this package, which needs no flag, normalizes them too."""
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": int(kind == "module")}
    folder = toy_model if kind == "bert" else write_model(tmp_path / "random", **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize=True) < 1e-5
    vectors = load_folder(tmp_path / "st").encode(SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("order_coefficients", [0, 1])
@pytest.mark.parametrize("num_layers", [0, 2])
def test_only_a_gated_mean_of_embeddings_needs_no_module_of_this_package(
    order_coefficients, num_layers, tmp_path
):
    """`lxsr embed` reads both kinds of folders."""
    sizes = {"num_layers": num_layers, "order_coefficients": order_coefficients}
    model = write_model(tmp_path / "random", gated=True, **sizes)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    assert export_sentence_transformers(encoder, tmp_path / "st", SENTENCES) < 1e-5
    needs_module = num_layers > 0 or order_coefficients > 0
    assert (tmp_path / "st" / ST_MODULE).is_dir() == needs_module
    (tmp_path / "text").write_text("a dog\n", encoding="utf-8")
    files = ("--input", tmp_path / "text", "--output", tmp_path / "o.npy")
    done = lxsr("embed", "--model", tmp_path / "st", *files)
    assert (encoder.fingerprint in done.stdout) == needs_module


@pytest.mark.parametrize("form", ["sentence-transformers", "hub"])
@pytest.mark.parametrize(
    ("sizes", "options", "why"),
    [
        ({"num_layers": 1}, (), ""),
        ({"num_layers": 0, "gated": True}, (), ""),
        (
            {"num_layers": 0, "gated": True, "order_coefficients": 1},
            (),
            "order.*--drop-order",
        ),
        ({"num_layers": 0, "gated": True, "order_coefficients": 1}, ("--drop-order",), ""),
        ({"num_layers": 1, "order_coefficients": 1}, (), "order"),
        ({"num_layers": 1, "gated": True}, (), "gated layers"),
    ],
)
def test_an_export_says_why_its_folder_needs_trust_remote_code(form, sizes, options, why, tmp_path):
    """The card shows the flag only if it is needed."""
    model = write_model(tmp_path / "random", **sizes)
    output = tmp_path / "st"
    printed = lxsr("export", form, "--model", model, "--output", output, *options).stdout
    notes = printed.splitlines()[1:]
    assert len(notes) == bool(why)
    for note in notes:
        assert re.search(f"{output}.*trust_remote_code=True.*{why}", note)
        assert ("--drop-order" in note) == ("--drop-order" in why)
    assert (output / ST_MODULE).is_dir() is bool(why)
    if form == "hub":
        card = (output / "README.md").read_text(encoding="utf-8")
        assert ("trust_remote_code=True" in card) is bool(why)


@pytest.mark.parametrize("architecture", ["laser", "tlaser", "transformer"])
def test_every_network_is_a_module_that_trains_and_is_saved(architecture, tmp_path):
    """The trainer of sentence-transformers lowers the loss in 5 steps; saved vectors are the same."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    # Imports sentence_transformers.
    from fairseq_lxsr.export.st_module import load_sentence_transformer

    sizes = {"gated": True, "order_coefficients": 1} if architecture == "transformer" else {}
    folder = small_model.write_folder(tmp_path / "model", architecture, **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    export_sentence_transformers(encoder, tmp_path / "st")
    model = SentenceTransformer(
        str(tmp_path / "st"), device="cpu", local_files_only=True, trust_remote_code=True
    )
    np.testing.assert_allclose(model.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)
    np.testing.assert_array_equal(model.encode(["", " "]), np.zeros((2, encoder.output_dim)))
    rows = [{"anchor": english, "positive": french} for english, french in toy.sentences(40)]
    pairs = Dataset.from_list(rows)
    arguments = Arguments(
        str(tmp_path / "out"),
        max_steps=5,
        per_device_train_batch_size=16,
        learning_rate=0.01,
        logging_steps=1,
    )
    arguments.report_to = []
    arguments.disable_tqdm = True
    arguments.save_strategy = "no"
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
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
    # An exported folder is replaced.
    for _ in range(2):
        export_sentence_transformers(encoder, tmp_path / "st")
    SentenceTransformer(str(tmp_path / "st"), device="cpu").save(str(tmp_path / "st"))
    with pytest.raises(InputError, match=r"modules\.json"):
        export_sentence_transformers(encoder, tmp_path / "st")


def test_a_folder_with_different_vectors_is_not_exported(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    # The layers have another value.
    object.__setattr__(encoder.model.config, "layer_norm_eps", 0.5)
    with pytest.raises(ValueError, match="cannot be exported"):
        export_sentence_transformers(encoder, tmp_path / "st")
    assert not (tmp_path / "st").exists()


def test_an_exported_folder_has_token_embeddings_and_max_seq_length(toy_model, tmp_path):
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


def test_the_module_refuses_backends_other_than_torch(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = small_model.write_folder(tmp_path / "model", gated=True, num_layers=1)
    export_sentence_transformers(SentenceEncoder.from_pretrained(folder, "cpu"), tmp_path / "st")
    with pytest.raises(InputError, match="backend 'onnx'"):
        SentenceTransformer(
            str(tmp_path / "st"), device="cpu", backend="onnx", trust_remote_code=True
        )
