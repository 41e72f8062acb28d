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
# A long text, letters that the model does not know, and a symbol written out.
SENTENCES += ["the dog " * 150, "Ünknown ☃ piece", "X <mask>"]
# Arguments: the folder, the output, and a file of sentences.
WITHOUT_PACKAGE = """
import sys
sys.modules["fairseq_lxsr"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[2], model.encode(open(sys.argv[3], encoding="utf-8").read().splitlines(), batch_size=7))
"""


@pytest.fixture(scope="module")
def exported_toy(toy_model, tmp_path_factory):
    """The exported toy model, and the output of the command."""
    folder = tmp_path_factory.mktemp("exported") / "st"
    options = ("--model", toy_model, "--output", folder)
    return folder, lxsr("export", "sentence-transformers", *options).stdout


@pytest.mark.slow
def test_the_command_prints_how_much_the_vectors_differ(exported_toy):
    _, output = exported_toy

    # For example 3.1e-07.
    [difference] = re.findall(r"\d[\d.]*e-\d+", output)
    assert float(difference) < 1e-4


@pytest.mark.slow
def test_the_folder_gives_the_same_vectors_without_this_package(exported_toy, toy_model, tmp_path):
    folder, _ = exported_toy
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")

    python(WITHOUT_PACKAGE, folder, tmp_path / "out.npy", tmp_path / "text", cwd=tmp_path)

    expected = SentenceEncoder.from_pretrained(toy_model, "cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


# `export_sentence_transformers` returns the largest difference of the vectors of the given
# sentences. It computes them with the folder and with this package.
LARGEST_DIFFERENCE = 1e-5


@pytest.mark.parametrize(
    ("pieces", "byte_fallback"), [("bpe", False), ("unigram", False), ("unigram", True)]
)
def test_models_with_pieces_outside_the_dictionary_are_exported(pieces, byte_fallback, tmp_path):
    """`write_model` leaves 20 pieces out of the dictionary."""
    model = write_model(tmp_path / "random", pieces, byte_fallback)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")

    difference = export_sentence_transformers(encoder, tmp_path / "st", SENTENCES)

    assert difference < LARGEST_DIFFERENCE


def library_tokenizer(tokenizer):
    """Return the exported tokenizer of the library tokenizers."""
    return fast_tokenizer(tokenizer, extended_symbols(tokenizer, len(tokenizer.symbols)))


def half_width_marks(text: str) -> str:
    """Replace the combining voicing marks of kana by the half-width ones."""
    return text.replace("\u3099", "\uff9e").replace("\u309a", "\uff9f")


KANA = [SAMPLE[-2], *(f"\uff71{text}" for text in VOICED)]
# Consonants and vowels of syllables, a syllable, compatibility letters, and a mark.
KOREAN = "\u1112\u1161\u11ab\ud558\u3131\u314f\u0301"


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([*KANA, *map(half_width_marks, KANA)], id="kana with voicing marks"),
        pytest.param(
            ["".join(letters) for letters in itertools.product(KOREAN, repeat=3)],
            id="Korean letters",
        ),
        pytest.param(
            [unicodedata.normalize("NFD", "개가 지붕 위에서 자고 있다. Où est-il ? Σήμερα")],
            id="decomposed letters",
        ),
        pytest.param(["\u0301\u0323 a\u0301\u0323"], id="marks in an unusual order"),
    ],
)
def test_letters_that_are_composed_have_the_same_pieces(packaged, texts):
    tokenizer = packaged.tokenizer

    encodings = library_tokenizer(tokenizer).encode_batch(texts)

    expected = [ids.tolist() for ids in tokenizer.encode(texts)]
    assert [encoding.ids for encoding in encodings] == expected


@pytest.mark.slow
def test_folded_letters_have_the_same_pieces(tmp_path):
    rules = write_folded_rules(tmp_path)
    model = write_model(tmp_path / "random", "unigram", version=4, rule=rules)
    tokenizer = SentenceEncoder.from_pretrained(model, "cpu").tokenizer
    texts: list[str] = []
    for text in itertools.chain.from_iterable(SPELLINGS):
        texts += [text, text.upper(), unicodedata.normalize("NFD", text)]

    encodings = library_tokenizer(tokenizer).encode_batch(texts)

    assert [encoding.tokens for encoding in encodings] == tokenizer.pieces(texts)


@pytest.mark.parametrize("num_layers", [0, 1])
def test_the_folder_has_the_layer_norm_eps_of_the_model(num_layers, tmp_path):
    """The value is so large that another one would change the vectors, and stop the export."""
    folder = write_model(tmp_path / "random", layer_norm_eps=0.5, num_layers=num_layers)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")

    difference = export_sentence_transformers(encoder, tmp_path / "st", SENTENCES)

    assert difference < LARGEST_DIFFERENCE


def test_an_ungated_model_without_layers_is_exported(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    encoder.model.layers = torch.nn.ModuleList()
    # The config is frozen.
    object.__setattr__(encoder.model.config, "num_layers", 0)

    difference = export_sentence_transformers(encoder, tmp_path / "st")

    assert difference < LARGEST_DIFFERENCE


@pytest.mark.parametrize("kind", ["bert", "module", "static"])
def test_every_kind_of_folder_can_normalize_vectors(kind, toy_model, tmp_path):
    """sentence-transformers reads layers as BERT, order coefficients by a module of this package,
    and a mean of rows as a static model. `load_folder` opens all of them without a flag.
    """
    sizes = {"gated": True, "num_layers": 0, "order_coefficients": int(kind == "module")}
    folder = toy_model if kind == "bert" else write_model(tmp_path / "random", **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")

    difference = export_sentence_transformers(encoder, tmp_path / "st", SENTENCES, normalize=True)

    assert difference < LARGEST_DIFFERENCE
    vectors = load_folder(tmp_path / "st").encode(SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


GATED_SIZES = [
    pytest.param({"num_layers": 0, "order_coefficients": 0}, False, id="mean"),
    pytest.param({"num_layers": 0, "order_coefficients": 1}, True, id="order"),
    pytest.param({"num_layers": 2, "order_coefficients": 0}, True, id="layers"),
    pytest.param({"num_layers": 2, "order_coefficients": 1}, True, id="layers and order"),
]


@pytest.mark.parametrize(("sizes", "needs_module"), GATED_SIZES)
def test_only_a_gated_mean_of_embeddings_needs_no_module_of_this_package(
    sizes, needs_module, tmp_path
):
    model = write_model(tmp_path / "random", gated=True, **sizes)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")

    difference = export_sentence_transformers(encoder, tmp_path / "st", SENTENCES)

    assert difference < LARGEST_DIFFERENCE
    assert (tmp_path / "st" / ST_MODULE).is_dir() == needs_module


@pytest.mark.parametrize(("sizes", "needs_module"), GATED_SIZES)
def test_embed_reads_folders_with_and_without_a_module(sizes, needs_module, tmp_path):
    """A module contains the model folder, so that its fingerprint is that of the model."""
    model = write_model(tmp_path / "random", gated=True, **sizes)
    encoder = SentenceEncoder.from_pretrained(model, "cpu")
    export_sentence_transformers(encoder, tmp_path / "st", SENTENCES)
    (tmp_path / "text").write_text("a dog\n", encoding="utf-8")

    files = ("--input", tmp_path / "text", "--output", tmp_path / "o.npy")
    done = lxsr("embed", "--model", tmp_path / "st", *files)

    assert (encoder.fingerprint in done.stdout) == needs_module


STATIC = {"num_layers": 0, "gated": True}


@pytest.mark.parametrize("form", ["sentence-transformers", "hub"])
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        pytest.param(STATIC | {"order_coefficients": 1}, "order.*--drop-order", id="order"),
        # Order coefficients of layers cannot be dropped.
        pytest.param({"num_layers": 1, "order_coefficients": 1}, "order", id="layers with order"),
        pytest.param({"num_layers": 1, "gated": True}, "gated layers", id="gated layers"),
    ],
)
def test_an_export_says_why_its_folder_needs_trust_remote_code(form, sizes, reason, tmp_path):
    model = write_model(tmp_path / "random", **sizes)
    output = tmp_path / "st"

    done = lxsr("export", form, "--model", model, "--output", output)

    _, note = done.stdout.splitlines()
    assert re.search(f"{output}.*trust_remote_code=True.*{reason}", note)
    assert ("--drop-order" in note) == ("--drop-order" in reason)
    assert (output / ST_MODULE).is_dir()


@pytest.mark.parametrize("form", ["sentence-transformers", "hub"])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        pytest.param({"num_layers": 1}, (), id="layers"),
        pytest.param(STATIC, (), id="mean"),
        pytest.param(STATIC | {"order_coefficients": 1}, ("--drop-order",), id="dropped order"),
    ],
)
def test_an_export_that_needs_no_code_says_nothing_about_it(form, sizes, options, tmp_path):
    model = write_model(tmp_path / "random", **sizes)
    output = tmp_path / "st"

    done = lxsr("export", form, "--model", model, "--output", output, *options)

    assert len(done.stdout.splitlines()) == 1
    assert not (output / ST_MODULE).exists()


@pytest.mark.parametrize(
    ("sizes", "needs_code"), [(STATIC, False), (STATIC | {"order_coefficients": 1}, True)]
)
def test_the_card_shows_trust_remote_code_only_if_it_is_needed(sizes, needs_code, tmp_path):
    model = write_model(tmp_path / "random", **sizes)

    lxsr("export", "hub", "--model", model, "--output", tmp_path / "st")

    card = (tmp_path / "st" / "README.md").read_text(encoding="utf-8")
    assert ("trust_remote_code=True" in card) is needs_code


# -- the module of this package in sentence-transformers

ARCHITECTURES = ["laser", "tlaser", "transformer"]
TEXT = "the red dog sees the cat"


@pytest.fixture
def encoder_of_module(request, tmp_path):
    """The encoder of a small network, which was exported to the folder `st`."""
    sizes = {"gated": True, "order_coefficients": 1} if request.param == "transformer" else {}
    folder = small_model.write_folder(tmp_path / "model", request.param, **sizes)
    encoder = SentenceEncoder.from_pretrained(folder, "cpu")
    export_sentence_transformers(encoder, tmp_path / "st")
    return encoder


def open_by_library(folder, **options):
    """Open a folder that needs code of this package."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        str(folder), device="cpu", local_files_only=True, trust_remote_code=True, **options
    )


@pytest.mark.parametrize("encoder_of_module", ARCHITECTURES, indirect=True)
def test_every_network_gives_its_vectors_in_sentence_transformers(encoder_of_module, tmp_path):
    model = open_by_library(tmp_path / "st")

    expected = encoder_of_module.encode(SENTENCES)
    np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=1e-5)
    zeros = np.zeros((2, encoder_of_module.output_dim))
    np.testing.assert_array_equal(model.encode(["", " "]), zeros)


def train_by_library(model, folder) -> list[float]:
    """Train a model with the trainer of sentence-transformers; return the loss of each update."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rows = [{"anchor": english, "positive": french} for english, french in toy.sentences(40)]
    arguments = Arguments(
        str(folder),
        max_steps=5,
        per_device_train_batch_size=16,
        learning_rate=0.01,
        logging_steps=1,
    )
    arguments.report_to = []
    arguments.disable_tqdm = True
    arguments.save_strategy = "no"
    loss = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=Dataset.from_list(rows), loss=loss
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("encoder_of_module", ARCHITECTURES, indirect=True)
def test_every_network_is_trained_and_saved_by_sentence_transformers(encoder_of_module, tmp_path):
    # Imports sentence_transformers.
    from fairseq_lxsr.export.st_module import load_sentence_transformer

    model = open_by_library(tmp_path / "st")

    losses = train_by_library(model, tmp_path / "out")
    model.save(str(tmp_path / "saved"))

    assert losses[-1] < losses[0], losses
    trained_vectors = model.encode(SENTENCES)
    assert np.abs(trained_vectors - encoder_of_module.encode(SENTENCES)).max() > 1e-3
    saved = load_sentence_transformer(tmp_path / "saved", "cpu")
    np.testing.assert_allclose(saved.encode(SENTENCES), trained_vectors, atol=1e-6)


@pytest.mark.parametrize("encoder_of_module", ["transformer"], indirect=True)
@pytest.mark.usefixtures("encoder_of_module")
def test_the_module_refuses_backends_other_than_torch(tmp_path):
    with pytest.raises(InputError, match="backend 'onnx'"):
        open_by_library(tmp_path / "st", backend="onnx")


def test_the_module_has_a_max_seq_length(tmp_path):
    from fairseq_lxsr.export.st_module import load_sentence_transformer

    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1)
    module = load_sentence_transformer(tmp_path / "model", "cpu")
    whole = module.encode(TEXT)

    module.max_seq_length = 2

    assert module.max_seq_length == 2
    assert np.abs(module.encode(TEXT) - whole).max() > 1e-3


def test_the_module_refuses_a_max_seq_length_of_zero(tmp_path):
    from fairseq_lxsr.export.st_module import load_sentence_transformer

    small_model.write_folder(tmp_path / "model", gated=True, num_layers=1)
    module = load_sentence_transformer(tmp_path / "model", "cpu")

    with pytest.raises(InputError, match="max_seq_length is 0"):
        module.max_seq_length = 0


# -- a folder that sentence-transformers reads as BERT


@pytest.fixture
def bert(toy_model, tmp_path):
    """The toy model in the folder `bert`, opened by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    export_sentence_transformers(encoder, tmp_path / "bert")
    return SentenceTransformer(str(tmp_path / "bert"), device="cpu")


def test_token_embeddings_are_those_whose_mean_is_the_embedding(bert, toy_model):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")

    [tokens] = bert.encode([TEXT], output_value="token_embeddings")

    _, [num_pieces] = encoder.split([TEXT])
    assert len(tokens) == num_pieces
    np.testing.assert_allclose(tokens.numpy().mean(axis=0), encoder.encode(TEXT), atol=1e-5)


def test_max_seq_length_cuts_as_in_this_package(bert, toy_model):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")

    bert.max_seq_length = 3
    encoder.max_seq_length = 3

    np.testing.assert_allclose(bert.encode(TEXT), encoder.encode(TEXT), atol=1e-5)


@pytest.mark.usefixtures("bert")
def test_a_folder_of_bert_is_not_read_by_this_package(tmp_path):
    with pytest.raises(InputError, match="bert"):
        SentenceEncoder.from_pretrained(tmp_path / "bert")


# -- folders that exist, and exports that fail


@pytest.fixture
def static_encoder(tmp_path):
    return SentenceEncoder.from_pretrained(write_model(tmp_path / "random", **STATIC), "cpu")


def test_an_exported_folder_is_replaced(static_encoder, tmp_path):
    export_sentence_transformers(static_encoder, tmp_path / "st")

    export_sentence_transformers(static_encoder, tmp_path / "st", normalize=True)

    assert "Normalize" in (tmp_path / "st" / "modules.json").read_text()


def test_a_folder_that_another_program_saved_is_not_replaced(static_encoder, tmp_path):
    from sentence_transformers import SentenceTransformer

    export_sentence_transformers(static_encoder, tmp_path / "st")
    SentenceTransformer(str(tmp_path / "st"), device="cpu").save(str(tmp_path / "st"))

    with pytest.raises(InputError, match=r"modules\.json"):
        export_sentence_transformers(static_encoder, tmp_path / "st")


def test_a_folder_with_different_vectors_is_not_exported(toy_model, tmp_path):
    encoder = SentenceEncoder.from_pretrained(toy_model, "cpu")
    # The folder has the value of the config, and the layers of the encoder have another.
    object.__setattr__(encoder.model.config, "layer_norm_eps", 0.5)

    with pytest.raises(ValueError, match="cannot be exported"):
        export_sentence_transformers(encoder, tmp_path / "st")

    assert not (tmp_path / "st").exists()
