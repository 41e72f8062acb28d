"""cLASER and cT-LASER with the released options have the values and gradients of the code of Li
and Mak.

Expected values: tests/golden/released/make_laser.py.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import formula
import numpy as np
import pytest
import torch
from conftest import case
from fairseq.data import ListDataset
from pair_batches import EOS, PAD, Words
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.modules.tlaser import sinusoidal_positions
from fairseq_lxsr.recipes import read_recipe
from fairseq_lxsr.training.laser import lstm as laser
from fairseq_lxsr.training.laser import transformer as tlaser
from fairseq_lxsr.training.laser.criterion import XlingTranslationLoss, XlingTranslationLossConfig
from fairseq_lxsr.training.laser.dataset import TranslationDataset
from fairseq_lxsr.training.pairs import PairCorpus

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "released" / "laser.json").read_text(encoding="utf-8")
)
BOS, VOCAB = 0, GOLDEN["vocab_size"]
TOLERANCE = 1e-5
MODELS = {
    "claser": (laser.LaserModelConfig, laser.LaserModel, "claser_6_released"),
    "ctlaser": (tlaser.TLaserModelConfig, tlaser.TLaserModel, "ctlaser_released"),
}
KINDS = list(MODELS)
SIZES = {
    "claser": {
        "encoder_embed_dim": 6,
        "encoder_hidden_size": 5,
        "encoder_layers": 2,
        "decoder_embed_dim": 7,
        "decoder_hidden_size": 8,
        "decoder_lang_embed_dim": 4,
    },
    "ctlaser": {
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 24,
        "encoder_attention_heads": 4,
        "encoder_layers": 2,
        "decoder_lang_embed_dim": 4,
        "max_positions": 50,
    },
}
# The released code spreads the smoothing over all V pieces. fairseq, since 0.10, and this package
# spread it over the V - 1 wrong ones.
SMOOTHING = GOLDEN["smoothing"] * (VOCAB - 1) / VOCAB
COMMON_OPTIONS = {
    "dropout": 0.0,
    "cpu_precision": "float32",
    "negatives": len(GOLDEN["permutations"]) // 2,
}


WORDS = Words(VOCAB)
TASK = SimpleNamespace(
    source_dictionary=WORDS, target_dictionary=WORDS, languages=GOLDEN["languages"]
)


def released_options(kind: str) -> dict:
    """The options of the recipe, in the sizes of the golden file."""
    options = {}
    for name, value in read_recipe(MODELS[kind][2]).options.items():
        options[name.replace("-", "_")] = value
    # OmegaConf would fill in this option.
    options["encoder_prepend_bos"] = options["encoder_append_eos"]
    options |= SIZES[kind] | COMMON_OPTIONS
    if kind == "ctlaser":
        options["label_smoothing"] = SMOOTHING
    return options


def build(kind: str, options: dict) -> nn.Module:
    cfg = MODELS[kind][0]()
    for name in vars(cfg).keys() & options.keys():
        setattr(cfg, name, options[name])
    return MODELS[kind][1].build_model(cfg, TASK).double()


# For each weight of the released code, the parts of our weights that make it.
Parts = dict[str, list[Tensor]]


def parts_of_laser(weights: dict[str, Tensor]) -> Parts:
    hidden = SIZES["claser"]["decoder_hidden_size"]
    language = SIZES["claser"]["decoder_lang_embed_dim"]
    # The columns of our cell are for piece, sentence, language and last output; those of the
    # released code for piece, sentence, last output and language.
    cell = weights["decoder.lstm.weight_ih_l0"]
    for_inputs, for_language, for_output = cell.tensor_split((-hidden - language, -hidden), dim=1)
    parts = {
        "encoder.embed_tokens.weight": [weights["encoder.network.embed_tokens.weight"]],
        "decoder.embed_tokens.weight": [weights["decoder.embed_tokens.weight"]],
        "decoder.embed_langs.weight": [weights["decoder.embed_languages.weight"]],
        "decoder.layers.0.weight_ih": [for_inputs, for_output, for_language],
    }
    for name in ("weight", "bias"):
        first_states = weights[f"decoder.first_states.{name}"]
        parts[f"decoder.encoder_hidden_proj.{name}"] = [first_states[:hidden]]
        parts[f"decoder.encoder_cell_proj.{name}"] = [first_states[hidden:]]
        parts[f"decoder.fc_out.{name}"] = [weights[f"decoder.output_projection.{name}"]]
    for name in ("weight_hh", "bias_ih", "bias_hh"):
        parts[f"decoder.layers.0.{name}"] = [weights[f"decoder.lstm.{name}_l0"]]
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        for layer in range(SIZES["claser"]["encoder_layers"]):
            for direction, suffix in (("ahead", ""), ("back", "_reverse")):
                weight = weights[f"encoder.network.layers.{layer}.{direction}.{name}_l0"]
                parts[f"encoder.lstm.{name}_l{layer}{suffix}"] = [weight]
    return parts


def parts_of_tlaser(weights: dict[str, Tensor]) -> Parts:
    renamed = {
        "decoder.embed_out": "decoder.output_projection.weight",
        "decoder.embed_langs.weight": "decoder.embed_languages.weight",
    }
    # The tag of the released code is the row of BOS.
    tokens = weights["encoder.network.embed_tokens.weight"]
    parts = {"encoder.embed_tokens.weight": [weights["encoder.network.tag"][None], tokens[1:]]}
    for name in sorted(GOLDEN["ctlaser"]["weights"].keys() - parts.keys()):
        our_name = renamed.get(name, name.replace("encoder.l", "encoder.network.l"))
        our_name = our_name.replace("decoder.layers.0.", "decoder.layer.")
        if name.startswith("encoder.") and "k_proj" in name:
            keys, _ = weights[our_name.replace("k_proj", "kv_proj")].chunk(2)
            parts[name] = [keys]
        elif name.startswith("encoder.") and "v_proj" in name:
            _, values = weights[our_name.replace("v_proj", "kv_proj")].chunk(2)
            parts[name] = [values]
        else:
            parts[name] = [weights.get(our_name)]
    return parts


PARTS = {"claser": parts_of_laser, "ctlaser": parts_of_tlaser}
# The dimension in which the parts are joined, if not 0.
DIMENSIONS = {"decoder.layers.0.weight_ih": 1}


def load(kind: str, model: nn.Module) -> None:
    """Copy the weights of the formula into our model; ValueError for another shape."""
    weights = {name: value.data for name, value in model.named_parameters()}
    for name, parts in PARTS[kind](weights).items():
        dim = DIMENSIONS.get(name, 0)
        expected = GOLDEN[kind]["weights"][name]["shape"]
        shape = list(torch.cat(parts, dim=dim).shape)
        if shape != expected:
            raise ValueError(f"{name}: {shape}, not {expected}")
        weight = torch.from_numpy(formula.weight(name, tuple(shape)))
        sizes = [part.shape[dim] for part in parts]
        for part, values in zip(parts, weight.split(sizes, dim), strict=True):
            part.copy_(values)
    if kind == "ctlaser":
        # fairseq counts positions from padding_idx + 1.
        for module in (model.encoder.network, model.decoder):
            positions = sinusoidal_positions(PAD + 1 + len(module.positions), 16)
            module.positions = positions[PAD + 1 :].double()


def side_of_pairs(side: int) -> ListDataset:
    sentences = [torch.tensor([*pair[side], EOS]) for pair in GOLDEN["pairs"]]
    return ListDataset(sentences, np.array([len(ids) for ids in sentences]))


def make_batch(options: dict) -> dict:
    pairs = PairCorpus("en-es", side_of_pairs(0), side_of_pairs(1))
    language = GOLDEN["languages"].index(GOLDEN["target_language"])
    data = TranslationDataset(
        [pairs],
        [language],
        padding_idx=PAD,
        eos_idx=EOS,
        max_positions=50,
        target_start=[BOS] if options["target_bos"] else [],
    )
    return data.collater([data[index] for index in range(len(GOLDEN["pairs"]))])


def compute(kind: str, monkeypatch, **changed) -> dict[str, np.ndarray]:
    """The values of our model and criterion with the weights, pairs and draws of the golden file."""
    options = released_options(kind) | changed
    model = build(kind, options)
    load(kind, model)
    batch = make_batch(options)
    names = XlingTranslationLossConfig.__dataclass_fields__.keys() & options.keys()
    criterion = XlingTranslationLoss(
        XlingTranslationLossConfig(**{name: options[name] for name in names}), TASK
    )
    # [2, N, B]
    draws = torch.tensor(GOLDEN["permutations"]).unflatten(0, (-1, 2)).transpose(0, 1)
    monkeypatch.setattr(losses, "draw_negatives", lambda *_: draws)
    logits, embeddings = model(**batch["net_input"], target_tokens=batch["target_tokens"])
    log_p = logits.flatten(0, 1)[batch["target_positions"]]
    gold = batch["target"].flatten()[batch["target_positions"]]
    pair, negative = criterion.constraint(embeddings["source"], embeddings["target"])
    smoothed, *_ = losses.label_smoothed_cross_entropy(log_p, gold, options["label_smoothing"])
    total, num_pieces, _ = criterion(model, batch)
    total.backward()
    gradients = {}
    for name, weight in model.named_parameters():
        gradients[name] = torch.zeros_like(weight) if weight.grad is None else weight.grad
    norms = []
    for _, parts in sorted(PARTS[kind](gradients).items()):
        norms.append(torch.cat([part.flatten() for part in parts]).norm())
    values = {
        "prev_output_tokens": batch["net_input"]["prev_output_tokens"],
        "target": batch["target"],
        "pieces": num_pieces,
        "source": embeddings["source"],
        "target_embeddings": embeddings["target"],
        "logits": log_p,
        "translation": smoothed.sum(),
        "pair": pair,
        "negative": negative,
        "total": total,
        "gradients": torch.stack(norms),
    }
    return {name: np.array(torch.as_tensor(value).detach()) for name, value in values.items()}


def expected_values(kind: str) -> dict[str, np.ndarray]:
    values = {}
    for name, value in GOLDEN[kind].items():
        if name != "weights":
            values[name] = np.array(value)
    weights = GOLDEN[kind]["weights"]
    values["gradients"] = np.array([weights[name]["gradient"] for name in sorted(weights)])
    values["logits"] = values["logits"][values["target"] != PAD]
    return values


def differences(kind: str, values: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each value from the expected one, relative to expected values above 1;
    infinite for another shape.
    """
    all_expected = expected_values(kind)
    result = {}
    for name, value in values.items():
        expected = all_expected[name]
        if value.shape == expected.shape:
            difference = np.abs(value - expected) / np.maximum(1, np.abs(expected))
            result[name] = difference.max()
        else:
            result[name] = np.inf
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_released_options_give_the_released_values_and_gradients(kind, monkeypatch):
    values = compute(kind, monkeypatch)
    largest = differences(kind, values)
    assert max(largest.values()) < TOLERANCE, largest
    np.testing.assert_allclose(
        values["gradients"], expected_values(kind)["gradients"], rtol=TOLERANCE, atol=1e-9
    )


# A changed option of the recipe, and the values that it changes.
CHANGED_OPTIONS = [
    ("claser", {"encoder_prepend_bos": False}, ["source", "target_embeddings", "logits", "pair"]),
    ("claser", {"encoder_append_eos": False}, ["source", "target_embeddings", "logits", "pair"]),
    ("claser", {"target_bos": False}, ["prev_output_tokens", "target", "pieces", "translation"]),
    ("claser", {"label_smoothing": 0.1}, ["translation", "total", "gradients"]),
    ("claser", {"constraint": "norm"}, ["pair", "negative", "total", "gradients"]),
    ("claser", {"constraint": "norm_of_mean_detached"}, ["gradients"]),
    ("ctlaser", {"encoder_append_eos": False}, ["source", "target_embeddings", "logits", "pair"]),
    ("ctlaser", {"target_bos": False}, ["prev_output_tokens", "target", "pieces", "translation"]),
    ("ctlaser", {"label_smoothing": 0.0}, ["translation", "total", "gradients"]),
    ("ctlaser", {"constraint": "norm"}, ["pair", "negative", "total", "gradients"]),
    ("ctlaser", {"constraint": "norm_of_mean_detached"}, ["gradients"]),
]


def test_each_released_option_changes_values_of_the_golden_file():
    for kind, option, names in CHANGED_OPTIONS:
        with case(f"{kind} {option}"), pytest.MonkeyPatch.context() as patch:
            largest = differences(kind, compute(kind, patch, **option))
            for name in names:
                assert largest[name] > 10 * TOLERANCE, largest


@pytest.mark.parametrize(
    ("kind", "changed", "weight"),
    [
        ("claser", {"decoder_input_feeding": False}, "decoder.layers.0.weight_ih"),
        ("claser", {"encoder_embed_dim": 5}, "encoder.embed_tokens.weight"),
        ("claser", {"decoder_embed_dim": 5}, "decoder.embed_tokens.weight"),
        ("ctlaser", {"decoder_lang_at": "input"}, "decoder.layers.0.encoder_attn.k_proj.weight"),
    ],
)
def test_each_released_size_changes_the_shape_of_a_weight(kind, changed, weight):
    with pytest.raises(ValueError, match=re.escape(f"{weight}: ")):
        load(kind, build(kind, released_options(kind) | changed))


def test_initial_weights_are_those_of_bert():
    """transformer_lw.py, line 400: the deviation is 0.02; line 1357: D^-0.5 for the output."""
    sizes = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 256}
    torch.manual_seed(1)
    weights = dict(build("ctlaser", released_options("ctlaser") | sizes).named_parameters())
    for name, value in weights.items():
        if value.dim() > 1 or name.endswith(".tag"):
            std = 128**-0.5 if name == "decoder.output_projection.weight" else 0.02
            rel = 4 * (2 * value.numel()) ** -0.5
            assert value[value != 0].std().item() == pytest.approx(std, rel=rel), name
        elif name.endswith("bias"):
            assert (value == 0).all(), name
    for name in ("encoder.network.embed_tokens.weight", "decoder.embed_tokens.weight"):
        assert (weights[name][PAD] == 0).all()
