"""LASER and T-LASER in fairseq-train, fairseq-generate and `lxsr`."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from conftest import (
    assert_same_weights,
    export,
    lxsr_here,
    python,
    refused,
    run,
    train,
    train_here,
    validations,
    weights,
)

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.recipes import read_recipe, train_command

# The number of epochs after which an architecture translates words.
ARCHS = {"laser_tiny": 8, "tlaser_tiny": 5}
OPTIONS = {
    "task": "xling_translation",
    "criterion": "xling_translation_loss",
    "lr": "0.01",
    "max_tokens": "500",
    "batch_size": "64",
    "dropout": "0.1",
}


@pytest.fixture(scope="module", params=ARCHS)
def trained_run(request, toy_work, tmp_path_factory):
    """The architecture, folder and output of a run with the constraint in both directions."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = ("--no-epoch-checkpoints", "--constraint", "norm")
    result = train(
        toy_work / "data-bin",
        folder,
        *flags,
        **OPTIONS,
        arch=request.param,
        max_epoch=str(ARCHS[request.param]),
    )
    return request.param, folder, result


@pytest.fixture(scope="module")
def model(trained_run):
    """The model folder of that run."""
    _, folder, _ = trained_run
    export(folder / "checkpoint_best.pt", folder / "model")
    return folder / "model"


@pytest.mark.slow
def test_the_validation_loss_falls(trained_run):
    arch, _, result = trained_run

    losses = validations(result, "nll_loss")

    # One for each epoch.
    assert len(losses) == ARCHS[arch]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_every_term_of_the_loss_and_the_directions_are_logged(trained_run):
    _, _, result = trained_run

    for part in ("loss", "nll_loss", "pair", "negative", "accuracy", "ppl"):
        assert re.search(rf"valid on .* \| {part} [0-9.]+", result.stdout), part
        assert re.search(rf"train \| .* \| {part} [0-9.]+", result.stdout), part
    assert "en-fr, fr-en" in result.stdout


@pytest.fixture
def test_text(toy_work):
    """The prefix of test.en and test.fr, 200 lines each."""
    return toy_work / "corpus" / "en-fr" / "test"


@pytest.mark.slow
def test_the_embeddings_of_a_model_folder_do_not_depend_on_the_batches(model, test_text, tmp_path):
    sentences = Path(f"{test_text}.en").read_text().splitlines()
    encoder = SentenceEncoder.from_pretrained(model)
    files = ("--input", f"{test_text}.en", "--output", tmp_path / "en.npy")

    lxsr_here("embed", "--model", model, *files)
    embeddings = np.load(tmp_path / "en.npy")
    one_by_one = encoder.encode(sentences, batch_size=1)
    backwards = encoder.encode(sentences[::-1], batch_size=7)

    assert embeddings.shape == (200, 32)
    np.testing.assert_allclose(embeddings, one_by_one, atol=2e-5)
    np.testing.assert_allclose(embeddings, backwards[::-1], atol=2e-5)


@pytest.mark.slow
def test_a_model_folder_is_evaluated(model, test_text):
    files = ("--source", f"{test_text}.en", "--target", f"{test_text}.fr")

    result = lxsr_here("eval", "xsr", "--model", model, *files)

    assert "nn P@1" in result.stdout


@pytest.mark.slow
def test_the_embeddings_in_bfloat16_are_close_to_those_in_float32(model, test_text):
    sentences = Path(f"{test_text}.en").read_text().splitlines()
    encoder = SentenceEncoder.from_pretrained(model)

    bfloat16 = encoder.encode(sentences, dtype="bfloat16", normalize=True)
    float32 = encoder.encode(sentences, normalize=True)

    cosines = (bfloat16 * float32).sum(axis=1)
    assert cosines.min() > 0.99


@pytest.mark.slow
def test_the_exported_weights_are_those_of_the_checkpoint(trained_run, model):
    _, folder, _ = trained_run
    trained_weights = weights(folder, "checkpoint_best.pt")
    exported_weights = SentenceEncoder.from_pretrained(model).model.state_dict()
    assert exported_weights
    for name, value in exported_weights.items():
        assert torch.equal(value, trained_weights[f"encoder.network.{name}"]), name


def generate(trained_run, data, pair, *options, check=True):
    """Translate the validation text with fairseq-generate."""
    _, folder, _ = trained_run
    words = ["--user-dir", "fairseq_lxsr", "--task", "xling_translation", "--cpu"]
    words += ["--gen-subset", "valid", "--scoring", "sacrebleu"]
    words += ["--path", folder / "checkpoint_best.pt", "--lang-pairs", pair, *options]
    return run("fairseq_cli.generate", data, *words, check=check)


# Some words of each language.
WORDS = {
    "fr": {"le", "chat", "voit", "suit", "chien"},
    "en": {"the", "cat", "sees", "follows", "dog"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("fr", "en")])
def test_fairseq_generate_translates_into_the_target_language(
    trained_run, toy_work, source, target
):
    options = ("--beam", "3", "--remove-bpe", "sentencepiece")

    result = generate(trained_run, toy_work / "data-bin", f"{source}-{target}", *options)

    # A translation is a line of its number, its score and its text.
    lines = [line for line in result.stdout.splitlines() if line.startswith("H-")]
    translations = [line.split("\t")[2] for line in lines]
    assert len(translations) == 100
    vocabulary = set(" ".join(translations).replace(".", " ").split())
    assert len(vocabulary & WORDS[target]) > len(vocabulary & WORDS[source])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.slow
def test_a_run_resumed_after_an_epoch_equals_one_of_two_epochs(arch, toy_work, tmp_path):
    flags = ("--disable-validation", "--constraint", "angular", "--no-epoch-checkpoints")

    # The run in parts reads its data in another process, which makes no difference.
    for name, epochs, workers in (("whole", "2", "0"), ("parts", "1", "1"), ("parts", "2", "1")):
        options = OPTIONS | {"arch": arch, "max_epoch": epochs, "num_workers": workers}
        train(toy_work / "data-bin", tmp_path / name, *flags, **options)

    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("laser_tiny", ("--memory-efficient-fp16", "--fp16-init-scale", "4")),
        ("tlaser_tiny", ("--cpu-precision", "bfloat16")),
    ],
)
@pytest.mark.slow
def test_the_loss_falls_in_half_precision(arch, flags, toy_work, tmp_path):
    flags = (*flags, "--constraint", "norm", "--no-save")

    result = train(
        toy_work / "data-bin", tmp_path / "run", *flags, **OPTIONS, arch=arch, max_epoch="2"
    )

    losses = validations(result, "nll_loss")
    assert losses[-1] < 0.95 * losses[0]


# Recipes of the released code, and the options that make them small.
SMALL = {
    "laser_1_released": {
        "--arch": "laser_tiny",
        "--encoder-embed-dim": 8,
        "--decoder-embed-dim": 8,
    },
    "ctlaser_released": {"--arch": "tlaser_tiny", "--max-positions": 24},
}


@pytest.fixture(params=SMALL)
def released_run(request, toy_work, tmp_path):
    """The recipe and folder of a short training by a recipe of the released code."""
    options = SMALL[request.param] | {
        "--max-tokens": 300,
        "--update-freq": 1,
        "--max-update": 3,
        "--cpu-precision": "float32",
    }
    words = ["--disable-validation"]
    for name, value in options.items():
        words += [name, str(value)]
    _, *flags = train_command(read_recipe(request.param), "data", words)
    result = train_here(toy_work / "data-bin", tmp_path, *flags)
    assert not result.returncode, result.stderr
    return request.param, tmp_path


def test_the_decoder_of_a_recipe_of_the_released_code_has_its_inputs(released_run):
    recipe, folder = released_run

    widths = {name: value.shape[-1] for name, value in weights(folder).items()}

    if recipe.startswith("laser"):
        # The embedding of the piece, the sentence, the embedding of the language, the last output.
        assert widths["decoder.lstm.weight_ih_l0"] == 8 + 32 + 32 + 32
    else:
        # The sentence and the embedding of the language.
        assert widths["decoder.layer.encoder_attn.k_proj.weight"] == 32 + 32


def test_the_encoder_of_a_recipe_of_the_released_code_reads_symbols_around_a_sentence(
    released_run,
):
    """LASER has one before and after it, T-LASER one after it, which an empty sentence lacks."""
    recipe, folder = released_run
    is_laser = recipe.startswith("laser")

    export(folder / "checkpoint_last.pt", folder / "model")

    encoder = SentenceEncoder.from_pretrained(folder / "model")
    config = encoder.model.config
    assert config.append_eos
    changes = {"append_eos": False}
    if is_laser:
        assert config.prepend_bos
        changes["prepend_bos"] = False
    else:
        changes["max_positions"] = 25
    # The same network, to which the symbols are given as a part of the sentence.
    without_symbols = type(encoder.model)(replace(config, **changes)).eval()
    without_symbols.load_state_dict(encoder.model.state_dict())
    ids, _ = encoder.tokenizer.encode_flat(["one red dog"])
    ids = [0, *ids, 2] if is_laser else [*ids, 2]
    expected = without_symbols(torch.tensor([ids])).detach().numpy()
    np.testing.assert_allclose(encoder.encode(["one red dog"]), expected, atol=1e-5)
    assert not encoder.encode([""]).any()


@pytest.fixture(scope="module")
def three_languages(tmp_path_factory):
    """Data of en-fr and en-de; the words of `de` are the French ones spelt backwards."""
    work = tmp_path_factory.mktemp("three")
    pairs = toy.sentences(400)
    toy.write(work / "text" / "en-fr", pairs)
    german = []
    for english, french in pairs[:200]:
        german.append((english, " ".join(word[::-1] for word in french.split())))
    toy.write(work / "text" / "en-de", german, ("en", "de"))
    command = ["prepare", "--work", work, "--data", work / "text" / "{pair}"]
    command += ["--lang-pairs", "en-fr,en-de", "--vocab-size", 200]
    command += ["--valid-size", 20, "--test-size", 20]
    lxsr_here(*command)
    return work / "data-bin"


@pytest.mark.slow
def test_only_the_named_directions_are_trained_and_a_run_is_not_resumed_with_another_target(
    three_languages, tmp_path
):
    def train_directions(directions, **options):
        flags = ("--no-epoch-checkpoints", "--lang-pairs", directions)
        return train(three_languages, tmp_path, *flags, **OPTIONS, arch="tlaser_tiny", **options)

    first = train_directions("de-en,fr-en", max_epoch="1")
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    resumed = train_directions("de-en,fr-en,en-de", max_epoch="2", check=False)

    assert "de-en, fr-en" in first.stdout
    assert state["task_state"]["target_languages"] == ["en"]
    refused(resumed, "['en']", "['de', 'en']")


@pytest.mark.parametrize(
    "flags", ["--encoder-attention-heads 5", "--max-positions 0", "--decoder-lang-embed-dim 0"]
)
def test_impossible_sizes_are_refused(three_languages, tmp_path, flags):
    result = train_here(
        three_languages, tmp_path / "run", *flags.split(), **OPTIONS, arch="tlaser_tiny"
    )
    refused(result, flags.replace("--encoder-attention-heads", "num_heads"))


@pytest.mark.slow
def test_a_language_that_was_not_trained_is_refused(trained_run, three_languages):
    result = generate(trained_run, three_languages, "en-de", check=False)
    refused(result, "--lang-pairs en-de")


# More than 2,000 pieces; T-LASER reads 750.
DOCUMENT = "one red dog sees the cat. " * 400
LONGER_DOCUMENT = DOCUMENT + "six fish"


@pytest.mark.slow
def test_long_documents_are_cut_by_tlaser_and_read_whole_by_laser(trained_run, model):
    """What a model does not read makes no difference."""
    arch, _, _ = trained_run
    is_cut = arch == "tlaser_tiny"
    encoder = SentenceEncoder.from_pretrained(model)
    _, lengths = encoder.tokenizer.encode_flat([DOCUMENT])
    assert lengths[0] > 2000
    counts = Counter()

    embedding, embedding_of_longer = encoder.encode([DOCUMENT, LONGER_DOCUMENT], counts=counts)

    # With several threads, the rows of a batch are not summed in the same order.
    is_equal = np.allclose(embedding, embedding_of_longer, rtol=0, atol=1e-5)
    assert is_equal == is_cut
    assert counts["long"] == (2 if is_cut else 0)


@pytest.mark.slow
def test_the_mean_of_the_parts_of_a_long_document_differs_from_its_beginning(trained_run, model):
    arch, _, _ = trained_run
    if arch != "tlaser_tiny":
        pytest.skip("LASER reads whole documents")
    encoder = SentenceEncoder.from_pretrained(model)
    assert encoder.model.config.max_positions == 750

    [beginning] = encoder.encode([LONGER_DOCUMENT])
    [mean_of_parts] = encoder.encode([LONGER_DOCUMENT], on_long="split-mean")

    assert not np.allclose(mean_of_parts, beginning)


# Prints by how much documents raise the peak of the memory of a process, in MB.
MEMORY = """
import sys
from pathlib import Path
from fairseq_lxsr import SentenceEncoder

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

encoder = SentenceEncoder.from_pretrained(sys.argv[1], "cpu")
words = "one red dog sees the cat "
encoder.encode([words] * 64)
before = peak()
encoder.encode([words * 200] * 64)
print(peak() - before)
"""


@pytest.mark.slow
def test_documents_of_750_tokens_take_little_more_memory_than_sentences(model):
    # All 64 documents at once would hold 64 x 2 heads x 750 x 750 floats per layer, 288 MB.
    megabytes = float(python(MEMORY, model))
    assert megabytes < 100


@pytest.mark.slow
def test_export_to_onnx_is_refused(model, tmp_path):
    options = ("--model", model, "--output", tmp_path / "out")

    result = lxsr_here("export", "onnx", *options, check=False)

    refused(result, "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_tlaser_embeds_in_int8_and_laser_refuses_it(trained_run, model, tmp_path):
    arch, _, _ = trained_run
    options = ("--dtype", "int8", "--input", __file__, "--output", tmp_path / "out.npy")

    result = lxsr_here("embed", "--model", model, *options, check=False)

    if arch == "tlaser_tiny":
        assert (tmp_path / "out.npy").exists()
    else:
        refused(result, "int8", "laser")
        assert not (tmp_path / "out.npy").exists()
