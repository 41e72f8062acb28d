"""LASER and T-LASER through fairseq-train, model folder, lxsr embed, lxsr eval and
fairseq-generate.
"""

import re
from collections import Counter
from dataclasses import asdict, replace
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

ARCHS = {"laser_tiny": 8, "tlaser_tiny": 5}  # and the epochs after which they translate words
OPTIONS = {
    "task": "xling_translation",
    "criterion": "xling_translation_loss",
    "lr": "0.01",
    "max_tokens": "500",
    "batch_size": "64",
    "dropout": "0.1",
}


@pytest.fixture(scope="module", params=ARCHS)
def trained(request, toy_work, tmp_path_factory):
    """A run with the constraint, both directions of en-fr."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = ("--no-epoch-checkpoints", "--constraint", "norm")
    done = train(
        toy_work / "data-bin",
        folder,
        *flags,
        **OPTIONS,
        arch=request.param,
        max_epoch=str(ARCHS[request.param]),
    )
    return request.param, folder, done


@pytest.fixture(scope="module")
def model(trained):
    _, folder, _ = trained
    export(folder / "checkpoint_best.pt", folder / "model")
    return folder / "model"


@pytest.mark.slow
def test_validation_loss_falls_and_every_part_is_logged(trained):
    arch, _, done = trained
    found = validations(done, "nll_loss")
    assert len(found) == ARCHS[arch]
    assert found[-1] < 0.7 * found[0]
    for part in ("loss", "nll_loss", "pair", "negative", "accuracy", "ppl"):
        assert re.search(rf"valid on .* \| {part} [0-9.]+", done.stdout), part
        assert re.search(rf"train \| .* \| {part} [0-9.]+", done.stdout), part
    assert "en-fr, fr-en" in done.stdout


@pytest.mark.slow
def test_the_folder_embeds_and_is_evaluated(model, toy_work, tmp_path):
    text = toy_work / "corpus" / "en-fr" / "test"
    lxsr_here("embed", "--model", model, "--input", f"{text}.en", "--output", tmp_path / "en.npy")
    stored = np.load(tmp_path / "en.npy")
    assert stored.shape == (200, 32)
    sentences = Path(f"{text}.en").read_text().splitlines()
    encoder = SentenceEncoder.from_pretrained(model)
    for other in (
        encoder.encode(sentences, batch_size=1),
        encoder.encode(sentences[::-1], batch_size=7)[::-1],
    ):
        np.testing.assert_allclose(stored, other, atol=2e-5)
    done = lxsr_here(
        "eval", "xsr", "--model", model, "--source", f"{text}.en", "--target", f"{text}.fr"
    )
    assert "nn P@1" in done.stdout
    cosine = encoder.encode(sentences, dtype="bfloat16", normalize=True) * encoder.encode(
        sentences, normalize=True
    )
    assert cosine.sum(axis=1).min() > 0.99


@pytest.mark.slow
def test_export_keeps_what_was_trained(trained, model):
    _, folder, _ = trained
    trained_weights = weights(folder, "checkpoint_best.pt")
    ours = SentenceEncoder.from_pretrained(model).model.state_dict()
    assert ours
    for name, value in ours.items():
        assert torch.equal(value, trained_weights[f"encoder.network.{name}"]), name


def generate(trained, data, pair, *options, check=True):
    _, folder, _ = trained
    fixed = (
        "--user-dir",
        "fairseq_lxsr",
        "--task",
        "xling_translation",
        "--cpu",
        "--gen-subset",
        "valid",
        "--scoring",
        "sacrebleu",
    )
    named = ("--path", folder / "checkpoint_best.pt", "--lang-pairs", pair)
    return run("fairseq_cli.generate", data, *fixed, *named, *options, check=check)


@pytest.mark.slow
def test_fairseq_generate_translates_into_the_language_asked_for(trained, toy_work):
    words = {
        "fr": {"le", "chat", "voit", "suit", "chien"},
        "en": {"the", "cat", "sees", "follows", "dog"},
    }
    for source, target in (("en", "fr"), ("fr", "en")):
        options = ("--beam", "3", "--remove-bpe", "sentencepiece")
        done = generate(trained, toy_work / "data-bin", f"{source}-{target}", *options)
        translated = [
            line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("H-")
        ]
        assert len(translated) == 100
        found = set(" ".join(translated).replace(".", " ").split())
        assert len(found & words[target]) > len(found & words[source])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.slow
def test_an_epoch_and_one_more_equal_two(arch, toy_work, tmp_path):
    flags = ("--disable-validation", "--constraint", "angular", "--no-epoch-checkpoints")
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
def test_half_precision_trains(arch, flags, toy_work, tmp_path):
    flags = (*flags, "--constraint", "norm", "--no-save")
    done = train(
        toy_work / "data-bin", tmp_path / "run", *flags, **OPTIONS, arch=arch, max_epoch="2"
    )
    found = validations(done, "nll_loss")
    assert found[-1] < 0.95 * found[0]


SMALL = {
    "laser_1_released": {
        "--arch": "laser_tiny",
        "--encoder-embed-dim": 8,
        "--decoder-embed-dim": 8,
    },
    "ctlaser_released": {"--arch": "tlaser_tiny", "--max-positions": 24},
}


@pytest.mark.parametrize("recipe", SMALL)
def test_a_recipe_of_the_released_code_trains_and_its_folder_reads_the_same_symbols(
    recipe, toy_work, tmp_path
):
    own = SMALL[recipe] | {
        "--max-tokens": 300,
        "--update-freq": 1,
        "--max-update": 3,
        "--cpu-precision": "float32",
    }
    words = [str(word) for item in own.items() for word in item]
    flags = train_command(read_recipe(recipe), "data", [*words, "--disable-validation"])[1:]
    done = train_here(toy_work / "data-bin", tmp_path, *flags)
    assert not done.returncode, done.stderr
    widths = {name: value.shape[-1] for name, value in weights(tmp_path).items()}
    if recipe.startswith("laser"):
        # piece, sentence, language, last output
        assert widths["decoder.lstm.weight_ih_l0"] == 8 + 32 + 32 + 32
    else:
        # sentence and language
        assert widths["decoder.layer.encoder_attn.k_proj.weight"] == 32 + 32
    export(tmp_path / "checkpoint_last.pt", tmp_path / "model")
    encoder = SentenceEncoder.from_pretrained(tmp_path / "model")
    config = asdict(encoder.model.config)
    symbols = {"append_eos": True} | ({"prepend_bos": True} if recipe.startswith("laser") else {})
    assert config.items() >= symbols.items()
    longer = {"max_positions": 25} if "max_positions" in config else {}
    plain = type(encoder.model)(
        replace(encoder.model.config, **dict.fromkeys(symbols, False), **longer)
    ).eval()
    plain.load_state_dict(encoder.model.state_dict())
    ids, _ = encoder.tokenizer.encode_flat(["one red dog"])
    framed = [*([0] if "prepend_bos" in symbols else []), *ids, 2]
    expected = plain(torch.tensor([framed])).detach().numpy()
    np.testing.assert_allclose(encoder.encode(["one red dog"]), expected, atol=1e-5)
    assert not encoder.encode([""]).any()


@pytest.fixture(scope="module")
def three_languages(tmp_path_factory):
    """en-fr and en-de, `de` made of the French words spelt backwards."""
    work = tmp_path_factory.mktemp("three")
    pairs = toy.sentences(400)
    toy.write(work / "text" / "en-fr", pairs)
    backwards = [
        (english, " ".join(word[::-1] for word in french.split()))
        for english, french in pairs[:200]
    ]
    toy.write(work / "text" / "en-de", backwards, ("en", "de"))
    options = (
        "--valid-size",
        20,
        "--test-size",
        20,
        "--vocab-size",
        200,
        "--lang-pairs",
        "en-fr,en-de",
    )
    lxsr_here("prepare", "--work", work, "--data", work / "text" / "{pair}", *options)
    return work / "data-bin"


@pytest.mark.slow
def test_directions_are_those_that_are_named(three_languages, tmp_path):
    command, options = (
        (three_languages, tmp_path / "run", "--no-epoch-checkpoints"),
        OPTIONS | {"arch": "tlaser_tiny"},
    )
    done = train(*command, "--lang-pairs", "de-en,fr-en", **options, max_epoch="1")
    assert "de-en, fr-en" in done.stdout
    assert read_checkpoint(tmp_path / "run" / "checkpoint_last.pt")["task_state"][
        "target_languages"
    ] == ["en"]
    done = train(
        *command, "--lang-pairs", "de-en,fr-en,en-de", **options, max_epoch="2", check=False
    )
    refused(done, "['en']", "['de', 'en']")


@pytest.mark.parametrize(
    "flags", ["--encoder-attention-heads 5", "--max-positions 0", "--decoder-lang-embed-dim 0"]
)
def test_options_that_do_not_fit_are_refused(three_languages, tmp_path, flags):
    done = train_here(
        three_languages, tmp_path / "run", *flags.split(), **OPTIONS, arch="tlaser_tiny"
    )
    refused(done, flags.replace("--encoder-attention-heads", "num_heads"))


@pytest.mark.slow
def test_a_language_that_was_not_trained_is_refused(trained, three_languages):
    refused(
        generate(trained, three_languages, "en-de", check=False),
        "--lang-pairs en-de",
    )


@pytest.mark.slow
def test_long_documents_are_cut_by_tlaser_and_read_whole_by_laser(trained, model):
    arch, _, _ = trained
    encoder = SentenceEncoder.from_pretrained(model)
    pieces = "one red dog sees the cat. " * 400
    ids = encoder.tokenizer.encode_flat([pieces])[1][0]
    assert ids > 2000
    counts = Counter()
    one, other = encoder.encode([pieces, pieces + "six fish"], counts=counts)
    # to float32: with several threads, two rows of a batch are not summed in the same order
    assert np.allclose(one, other, rtol=0, atol=1e-5) == (arch == "tlaser_tiny")
    assert counts["long"] == (2 if arch == "tlaser_tiny" else 0)
    if arch == "tlaser_tiny":
        assert encoder.model.config.max_positions == 750
        split = encoder.encode([pieces + "six fish"], on_long="split-mean")[0]
        assert not np.allclose(split, other)


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
    # MiB; all 64 at once would hold 64 x 2 heads x 750 x 750 floats a layer, 288 MB
    assert float(python(MEMORY, model)) < 100


@pytest.mark.slow
def test_onnx_is_refused_and_int8_is_for_transformers(trained, model, tmp_path):
    arch, _, _ = trained
    done = lxsr_here("export", "onnx", "--model", model, "--output", tmp_path / "out", check=False)
    refused(done, "onnx")
    assert not (tmp_path / "out").exists()
    options = ("--dtype", "int8", "--input", __file__, "--output", tmp_path / "out.npy")
    done = lxsr_here("embed", "--model", model, *options, check=False)
    assert (tmp_path / "out.npy").exists() == (arch == "tlaser_tiny")
    if arch == "laser_tiny":
        refused(done, "int8", "laser")
