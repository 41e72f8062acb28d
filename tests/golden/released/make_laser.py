"""Makes laser.json: values of cLASER and cT-LASER that the released code of Li and Mak computes.

RELEASED is a checkout of ever4244/tfm_laser_0520 on GitHub:

    PYTHONPATH=tests python tests/golden/released/make_laser.py --released RELEASED tests/golden/released/laser.json

The released code was written for a fairseq of 2020 and a GPU. The imported files run unchanged with
fairseq 0.12.2 if `.cuda()` does nothing. `torch.randperm` is replaced to return `PERMUTATIONS`.
laser_task.py and multilingual_translation_lw.py, which choose the language pair of a batch, are not
imported. `LaserModel.build_model` needs that task, so the encoder and the decoder are built here,
with the same arguments. `cross_entropy_dist` gets its option "dnorm+" here, because no released
option sets it, and without it `forward_dist` fails (line 487).
"""

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import formula
import numpy as np
import torch
from fairseq.data import Dictionary, ListDataset

COMMIT = "37a4b3a576d026ba5762711b6266875f1e3c347a"
LANGUAGES = ["de", "en", "es"]
VOCAB = 20
# In the order of the released collater: longest source first.
PAIRS = [
    [[5, 9, 12, 7, 16], [6, 17, 8]],
    [[8, 4, 19, 11], [14, 5, 9, 18, 7]],
    [[11, 6, 13], [12]],
    [[10, 15], [4, 10, 16, 13]],
]
# Three draws, each for the source and the target. The fifth permutation leaves a sentence in its
# place, as a random one may.
PERMUTATIONS = [[1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0], [1, 2, 3, 0], [0, 2, 3, 1], [3, 0, 1, 2]]
LASER = {"embed_dim": 6, "hidden_size": 5, "num_layers": 2}
LASER_DECODER = {"embed_dim": 7, "hidden_size": 8, "out_embed_dim": 8, "lang_embedding_size": 4}
TLASER = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_layers": 1,
    "lang_embedding_size": 4,
}
# From new_vastai_0801_bigt2t_noshr_5lan_2xtitan_tfm.bash, with fewer negatives.
CONSTRAINT = {"beta": 0.25, "margin": 0.5, "Ns": len(PERMUTATIONS) // 2}
LAMBDA = 0.5
SMOOTHING = 0.1


def released(folder: Path) -> dict[str, ModuleType]:
    """Import the files of the checkout that are needed, without its __init__.py."""
    command = ["git", "-C", folder, "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if commit != COMMIT:
        sys.exit(f"{folder}: at commit {commit}; expected {COMMIT}")
    package = ModuleType("released")
    package.__path__ = [str(folder)]
    sys.modules["released"] = package
    names = (
        "laser_lstm",
        "transformer_lw",
        "language_pair_dataset_lw",
        "cross_entropy_dist",
        "label_smoothed_cross_entropy_dist",
    )
    return {name: importlib.import_module(f"released.{name}") for name in names}


def dictionary() -> Dictionary:
    words = Dictionary()
    for index in range(VOCAB - len(words)):
        words.add_symbol(f"w{index}")
    return words


def batch(code: dict[str, ModuleType], words: Dictionary) -> dict:
    """Return the pairs as the released dataset collates them, between BOS and EOS."""
    arguments = []
    for side in (0, 1):
        sentences = [torch.tensor([*pair[side], words.eos()]) for pair in PAIRS]
        lengths = np.array([len(ids) for ids in sentences])
        arguments += [ListDataset(sentences), lengths, words]
    data = code["language_pair_dataset_lw"].LanguagePairDataset(*arguments)
    sample = data.collater([data[index] for index in range(len(PAIRS))])
    sample["net_input"]["decoder_lang"] = "es"
    return sample


def claser(
    code: dict[str, ModuleType], task: SimpleNamespace
) -> tuple[torch.nn.Module, torch.nn.Module]:
    module = code["laser_lstm"]
    words = task.source_dictionary
    no_dropout = {"dropout_in": 0.0, "dropout_out": 0.0}
    encoder = module.LaserEncoder(words, **LASER, bidirectional=True, **no_dropout)
    numbers = {language: number for number, language in enumerate(task.langs)}
    units = 2 * LASER["hidden_size"]
    decoder = module.LaserDecoder(
        words, numbers, **LASER_DECODER, **no_dropout, attention=False, encoder_output_units=units
    )
    criterion = code["cross_entropy_dist"].CrossEntropyCriterion_dist(
        task, sentence_avg=False, **CONSTRAINT, la=LAMBDA, options="dnorm+"
    )
    return module.LaserModel(encoder, decoder), criterion


def ctlaser(
    code: dict[str, ModuleType], task: SimpleNamespace
) -> tuple[torch.nn.Module, torch.nn.Module]:
    options = Namespace(
        **TLASER,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
        fp16=False,
        test_mod="empty",
        sentemb_mod="first",
        init_mod="BERT",
        encoder_layers_to_keep=None,
        decoder_layers_to_keep=None,
        dropout=0.0,
        encoder_layerdrop=0,
        decoder_layerdrop=0,
    )
    model = code["transformer_lw"].TransformerModel_lw.build_model(options, task)
    criterion = code["label_smoothed_cross_entropy_dist"].LabelSmoothedCrossEntropyCriterion_dist(
        task, sentence_avg=False, label_smoothing=SMOOTHING, **CONSTRAINT, dist_opt="dnorm+"
    )
    return model, criterion


@contextlib.contextmanager
def fixed_permutations():
    """Make torch.randperm return `PERMUTATIONS`."""
    original = torch.randperm
    permutations = iter(PERMUTATIONS)
    torch.randperm = lambda size: torch.tensor(next(permutations))
    try:
        yield
    finally:
        torch.randperm = original


def parts_of_constraint(
    criterion: torch.nn.Module, source: torch.Tensor, target: torch.Tensor
) -> tuple[float, float]:
    """Return L_pair and L_neg; the released function returns L_pair + la * L_neg."""
    constraint = getattr(criterion, "ce_dist", criterion)
    original_weight = constraint.la
    sums = []
    for weight in (0.0, 1.0):
        constraint.la = weight
        with fixed_permutations():
            sums.append(constraint.distance_dnorm_plus(source, target)[0].item())
    constraint.la = original_weight
    pair = sums[0]
    return pair, sums[1] - pair


def compute(model: torch.nn.Module, criterion: torch.nn.Module, sample: dict) -> dict:
    shapes = {name: list(value.shape) for name, value in model.named_parameters()}
    for name, value in model.named_parameters():
        value.data.copy_(torch.from_numpy(formula.weight(name, tuple(value.shape))))
    net_input = sample["net_input"]
    output = model(**net_input)
    source = output[-1]["sentemb"]
    order = sample["tgt_lengths"].argsort(descending=True)
    sorted_target = model.encoder(sample["target"][order], sample["tgt_lengths"][order])["sentemb"]
    target = sorted_target[order.argsort()]
    pair, negative = parts_of_constraint(criterion, source, target)
    translation, _ = criterion.compute_loss(model, output, sample)
    with fixed_permutations():
        total, pieces, _ = criterion(model, sample)
    total.backward()
    gradients = {name: value.grad.norm().item() for name, value in model.named_parameters()}
    return {
        "src_tokens": net_input["src_tokens"].tolist(),
        "prev_output_tokens": net_input["prev_output_tokens"].tolist(),
        "target": sample["target"].tolist(),
        "pieces": pieces,
        "source": rounded(source),
        "target_embeddings": rounded(target),
        "logits": rounded(output[0]),
        "translation": translation.item(),
        "pair": pair,
        "negative": negative,
        "total": total.item(),
        "weights": {name: {"shape": shapes[name], "gradient": gradients[name]} for name in shapes},
    }


def rounded(values: torch.Tensor) -> list:
    return values.detach().numpy().round(8).tolist()


def main(folder: Path, output: Path) -> None:
    torch.set_default_dtype(torch.float64)
    torch.Tensor.cuda = lambda self, *_, **__: self
    code = released(folder)
    words = dictionary()
    task = SimpleNamespace(langs=LANGUAGES, source_dictionary=words, target_dictionary=words)
    result = {
        "commit": COMMIT,
        "vocab_size": VOCAB,
        "languages": LANGUAGES,
        "target_language": "es",
        "pairs": PAIRS,
        "permutations": PERMUTATIONS,
        "smoothing": SMOOTHING,
    }
    for build in (claser, ctlaser):
        # The released code prints.
        with contextlib.redirect_stdout(io.StringIO()):
            result[build.__name__] = compute(*build(code, task), batch(code, words))
    output.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--released", type=Path, required=True, metavar="DIR", help="checkout of their repository"
    )
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    main(arguments.released, arguments.output)
