"""cLASER and cT-LASER with the released options compute what the code of Li and Mak computes,
gradients included.

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
        **{"encoder_embed_dim": 6, "encoder_hidden_size": 5, "encoder_layers": 2},
        **{"decoder_embed_dim": 7, "decoder_hidden_size": 8, "decoder_lang_embed_dim": 4},
    },
    "ctlaser": {
        **{
            "encoder_embed_dim": 16,
            "encoder_ffn_embed_dim": 24,
            "encoder_attention_heads": 4,
            "encoder_layers": 2,
        },
        **{"decoder_lang_embed_dim": 4, "max_positions": 50},
    },
}
# their smoothing has eps / V at every piece; ours eps / (V - 1) at the others, as fairseq has it
# since 0.10
SMOOTHING = GOLDEN["smoothing"] * (VOCAB - 1) / VOCAB
SAME = {"dropout": 0.0, "cpu_precision": "float32", "negatives": len(GOLDEN["permutations"]) // 2}


WORDS = Words(VOCAB)
TASK = SimpleNamespace(
    source_dictionary=WORDS, target_dictionary=WORDS, languages=GOLDEN["languages"]
)


def released_options(kind: str) -> dict:
    """The options of the recipe, in the sizes of the golden file."""
    options = {
        name.replace("-", "_"): value
        for name, value in read_recipe(MODELS[kind][2]).options.items()
    }
    options["encoder_prepend_bos"] = options["encoder_append_eos"]  # as OmegaConf fills it in
    return (
        options | SIZES[kind] | SAME | ({"label_smoothing": SMOOTHING} if kind == "ctlaser" else {})
    )


def build(kind: str, options: dict) -> nn.Module:
    cfg = MODELS[kind][0]()
    for name in vars(cfg).keys() & options.keys():
        setattr(cfg, name, options[name])
    return MODELS[kind][1].build_model(cfg, TASK).double()


Views = dict[str, list[Tensor]]  # name of theirs: parts of ours that make it


def views_of_laser(ours: dict[str, Tensor]) -> Views:
    hidden, language = (
        SIZES["claser"][name] for name in ("decoder_hidden_size", "decoder_lang_embed_dim")
    )
    cell, first = ours["decoder.lstm.weight_ih_l0"], "decoder.first_states"
    inputs, of_language, last_output = cell.tensor_split((-hidden - language, -hidden), dim=1)
    found = {
        "encoder.embed_tokens.weight": [ours["encoder.network.embed_tokens.weight"]],
        "decoder.embed_tokens.weight": [ours["decoder.embed_tokens.weight"]],
        "decoder.embed_langs.weight": [ours["decoder.embed_languages.weight"]],
        # theirs: piece, sentence, last output, language; ours: piece, sentence, language, last
        # output
        "decoder.layers.0.weight_ih": [inputs, last_output, of_language],
    }
    for part in ("weight", "bias"):
        found[f"decoder.encoder_hidden_proj.{part}"] = [ours[f"{first}.{part}"][:hidden]]
        found[f"decoder.encoder_cell_proj.{part}"] = [ours[f"{first}.{part}"][hidden:]]
        found[f"decoder.fc_out.{part}"] = [ours[f"decoder.output_projection.{part}"]]
    for part in ("weight_hh", "bias_ih", "bias_hh"):
        found[f"decoder.layers.0.{part}"] = [ours[f"decoder.lstm.{part}_l0"]]
    for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        for layer in range(SIZES["claser"]["encoder_layers"]):
            for direction, suffix in (("ahead", ""), ("back", "_reverse")):
                value = ours[f"encoder.network.layers.{layer}.{direction}.{part}_l0"]
                found[f"encoder.lstm.{part}_l{layer}{suffix}"] = [value]
    return found


def views_of_tlaser(ours: dict[str, Tensor]) -> Views:
    renamed = {
        "decoder.embed_out": "decoder.output_projection.weight",
        "decoder.embed_langs.weight": "decoder.embed_languages.weight",
    }
    tokens = ours["encoder.network.embed_tokens.weight"]
    # their tag is BOS
    found = {"encoder.embed_tokens.weight": [ours["encoder.network.tag"][None], tokens[1:]]}
    for name in sorted(GOLDEN["ctlaser"]["weights"].keys() - found.keys()):
        our_name = renamed.get(name, name.replace("encoder.l", "encoder.network.l"))
        our_name = our_name.replace("decoder.layers.0.", "decoder.layer.")
        for half, part in enumerate(("k_proj", "v_proj")):
            if part in name and name.startswith("encoder."):
                found[name] = [ours[our_name.replace(part, "kv_proj")].chunk(2)[half]]
        found.setdefault(name, [ours.get(our_name)])
    return found


VIEWS = {"claser": views_of_laser, "ctlaser": views_of_tlaser}
# dimension along which the parts of theirs stand side by side, if not 0
SIDE = {"decoder.layers.0.weight_ih": 1}


def load(kind: str, model: nn.Module) -> None:
    """Copy the formula's weights into our model; ValueError for another shape."""
    for name, parts in VIEWS[kind](
        {name: value.data for name, value in model.named_parameters()}
    ).items():
        dim, expected = SIDE.get(name, 0), GOLDEN[kind]["weights"][name]["shape"]
        shape = list(torch.cat(parts, dim=dim).shape)
        if shape != expected:
            raise ValueError(f"{name}: {shape}, not {expected}")
        theirs = torch.from_numpy(formula.weight(name, tuple(shape)))
        for part, values in zip(
            parts, theirs.split([part.shape[dim] for part in parts], dim), strict=True
        ):
            part.copy_(values)
    if kind == "ctlaser":  # fairseq counts positions from padding_idx + 1
        for module in (model.encoder.network, model.decoder):
            module.positions = sinusoidal_positions(PAD + 1 + len(module.positions), 16)[
                PAD + 1 :
            ].double()


def make_batch(options: dict) -> dict:
    sides = [[torch.tensor([*pair[side], EOS]) for pair in GOLDEN["pairs"]] for side in (0, 1)]
    lists = [ListDataset(side, np.array([len(ids) for ids in side])) for side in sides]
    language = GOLDEN["languages"].index(GOLDEN["target_language"])
    start = [BOS] if options["target_bos"] else []
    more = {"padding_idx": PAD, "eos_idx": EOS, "max_positions": 50, "target_start": start}
    data = TranslationDataset([PairCorpus("en-es", *lists)], [language], **more)
    return data.collater([data[index] for index in range(len(GOLDEN["pairs"]))])


def compute(kind: str, monkeypatch, **changed) -> dict[str, np.ndarray]:
    """What our model and criterion make of the same weights, pairs and draws."""
    options = released_options(kind) | changed
    model, batch = build(kind, options), make_batch(options)
    load(kind, model)
    names = XlingTranslationLossConfig.__dataclass_fields__.keys() & options.keys()
    criterion = XlingTranslationLoss(
        XlingTranslationLossConfig(**{name: options[name] for name in names}), TASK
    )
    draws = torch.tensor(GOLDEN["permutations"]).unflatten(0, (-1, 2)).transpose(0, 1)  # [2, N, B]
    monkeypatch.setattr(losses, "draw_negatives", lambda *_: draws)
    logits, embeddings = model(**batch["net_input"], target_tokens=batch["target_tokens"])
    log_p = logits.flatten(0, 1)[batch["target_positions"]]
    gold = batch["target"].flatten()[batch["target_positions"]]
    pair, negative = criterion.constraint(embeddings["source"], embeddings["target"])
    total, pieces, _ = criterion(model, batch)
    total.backward()
    named = model.named_parameters()
    gradients = {
        name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in named
    }
    views = sorted(VIEWS[kind](gradients).items())
    norms = [torch.cat([part.flatten() for part in parts]).norm() for _, parts in views]
    found = {
        "prev_output_tokens": batch["net_input"]["prev_output_tokens"],
        "target": batch["target"],
        "pieces": pieces,
        "source": embeddings["source"],
        "target_embeddings": embeddings["target"],
        "logits": log_p,
        "translation": losses.label_smoothed_cross_entropy(log_p, gold, options["label_smoothing"])[
            0
        ].sum(),
        "pair": pair,
        "negative": negative,
        "total": total,
        "gradients": torch.stack(norms),
    }
    return {name: np.array(torch.as_tensor(value).detach()) for name, value in found.items()}


def expected_values(kind: str) -> dict[str, np.ndarray]:
    stored = GOLDEN[kind] | {
        "gradients": [each["gradient"] for _, each in sorted(GOLDEN[kind]["weights"].items())]
    }
    theirs = {name: np.array(value) for name, value in stored.items() if name != "weights"}
    return theirs | {"logits": theirs["logits"][theirs["target"] != PAD]}


def differences(kind: str, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each result from theirs, relative where they are above 1; infinite for
    another shape.
    """
    expected, off = expected_values(kind), {}
    for name, ours in found.items():
        theirs, same = expected[name], ours.shape == expected[name].shape
        off[name] = (
            (np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max() if same else np.inf
        )
    return off


@pytest.mark.parametrize("kind", KINDS)
def test_released_options_give_the_released_values_and_gradients(kind, monkeypatch):
    found = compute(kind, monkeypatch)
    off = differences(kind, found)
    assert max(off.values()) < TOLERANCE, off
    np.testing.assert_allclose(
        found["gradients"], expected_values(kind)["gradients"], rtol=TOLERANCE, atol=1e-9
    )


# a setting of the recipe that is turned back, and the results that show it
TURNED_BACK = [
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


@pytest.mark.parametrize(
    ("kind", "changed", "seen"), TURNED_BACK, ids=[str(case[:2]) for case in TURNED_BACK]
)
def test_each_setting_that_is_turned_back_is_seen(kind, changed, seen, monkeypatch):
    off = differences(kind, compute(kind, monkeypatch, **changed))
    assert all(off[name] > 10 * TOLERANCE for name in seen), off


@pytest.mark.parametrize(
    ("kind", "changed", "weight"),
    [
        ("claser", {"decoder_input_feeding": False}, "decoder.layers.0.weight_ih"),
        ("claser", {"encoder_embed_dim": 5}, "encoder.embed_tokens.weight"),
        ("claser", {"decoder_embed_dim": 5}, "decoder.embed_tokens.weight"),
        ("ctlaser", {"decoder_lang_at": "input"}, "decoder.layers.0.encoder_attn.k_proj.weight"),
    ],
)
def test_each_setting_that_changes_the_weights_is_seen(kind, changed, weight):
    with pytest.raises(ValueError, match=re.escape(f"{weight}: ")):
        load(kind, build(kind, released_options(kind) | changed))


def test_initial_weights_are_those_of_bert():
    """transformer_lw.py, line 400: N(0, 0.02) for matrices and embeddings, D^-0.5 for the output
    (line 1357).
    """
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
