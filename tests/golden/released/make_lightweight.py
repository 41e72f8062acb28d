"""Makes lightweight.json: losses, gradients and a training of the released lightweight model.

git clone https://github.com/Mao-KU/lightweight-crosslingual-sent2vec RELEASED
PYTHONPATH=.:tests python tests/golden/released/make_lightweight.py --released RELEASED

It runs `modeling/bertModel.py` of that repository in float64 without dropout, on the weights and
pairs of `tests/released_pairs.py`. Names of weights are ours.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from released_pairs import EPOCHS, PAD, PAIRS, SIZES, VOCAB, WHOLE, masked, weights
from torch import Tensor, nn

from benchmarks.released.model import (
    COMMIT,
    Training,
    give_weights,
    gradients,
    released_config,
    released_loss,
    released_model,
)
from fairseq_lxsr.modules import ReconstructionHead, TransformerConfig, TransformerSentenceEncoder

OUTPUT = Path(__file__).with_name("lightweight.json")
LAYERS = (1, 2)
WHOLE_TENSORS = (
    "encoder.layer_norm.weight",
    "encoder.layers.0.self_attn.in_proj.bias",
    "head.bias",
)
# other than theirs, so that few updates show the schedule, the decay of weights and AMSGrad
TRAINING = {"lr": 0.01, "weight_decay": 0.02, "warmup": 5, "decay_from": 3, "betas": [0.8, 0.8]}


def batch_of(numbers) -> dict[str, Any]:
    """The batch of our task, from the pairs of these numbers."""
    sides, own = {}, {}
    for which, side in enumerate(("source", "target")):
        rows = [
            masked(PAIRS[n][which], PAIRS[n][3] if PAIRS[n][2] == side else None) for n in numbers
        ]
        pieces = [[PAIRS[n][which][PAIRS[n][3]] if PAIRS[n][2] == side else PAD] for n in numbers]
        longest = max(map(len, rows))
        sides[side] = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
        own[f"{side}_masked_ids"] = torch.tensor(pieces)
    return {"net_input": sides, **own}


def our_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    encoder = TransformerSentenceEncoder(TransformerConfig(VOCAB, PAD, num_layers=layers, **SIZES))
    head = ReconstructionHead(SIZES["embed_dim"], SIZES["embed_dim"], VOCAB)
    parts = {"encoder": encoder, "head": head}
    return {
        f"{name}.{weight}": tuple(value.shape)
        for name, part in parts.items()
        for weight, value in part.state_dict().items()
    }


def build(
    folder: Path, layers: int, targets: str = "ugt", align: bool = True, sim: bool = True
) -> nn.Module:
    config = released_config(
        folder,
        vocab_size=VOCAB,
        token_dim=SIZES["embed_dim"],
        ffn_dim=SIZES["ffn_embed_dim"],
        num_heads=SIZES["num_heads"],
        max_seq_len=SIZES["max_positions"],
        num_layers=layers,
        has_sentence_loss=align,
        has_sentence_similarity_loss=sim,
    )
    model = released_model(folder, config, targets)
    give_weights(model, weights(our_shapes(layers)))
    return model


def loss_and_gradients(model: nn.Module, names) -> tuple[float, dict[str, Tensor]]:
    loss = released_loss(model, batch_of(WHOLE))
    loss.backward()
    return loss.item(), gradients(model, names)


def values(folder: Path, layers: int) -> dict[str, Any]:
    """Losses and norms of gradients of every term alone, times its weight, and of the sums that
    were published.
    """
    names = our_shapes(layers)

    def measure(*kind) -> tuple[float, dict[str, Tensor]]:
        return loss_and_gradients(build(folder, layers, *kind), names)

    ugt, total = measure("ugt", False, False), measure("ugt")
    runs = {
        "ugt": ugt,
        "xtr": measure("xtr", False, False),
        "align": difference(measure("ugt", True, False), ugt),
        "sim": difference(measure("ugt", False, True), ugt),
        "ugt+align+sim": total,
    }
    norms = {
        run: {name: value.norm().item() for name, value in found[1].items()}
        for run, found in runs.items()
    }
    return {
        "losses": {run: found[0] for run, found in runs.items()},
        "norms": norms,
        "gradients": {name: total[1][name].tolist() for name in WHOLE_TENSORS},
        "training": train(build(folder, layers)),
    }


def difference(both: tuple[float, dict[str, Tensor]], one: tuple[float, dict[str, Tensor]]):
    return both[0] - one[0], {name: value - one[1][name] for name, value in both[1].items()}


def train(model: nn.Module) -> list[float]:
    """The loss before each update."""
    training = Training(model, TRAINING)
    return [
        training.update(batch_of(batch), epoch)
        for epoch, batches in enumerate(EPOCHS)
        for batch in batches
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--released", type=Path, required=True, metavar="DIR", help="checkout of their repository"
    )
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    made = {
        "source": {
            "repository": "github.com/Mao-KU/lightweight-crosslingual-sent2vec",
            "commit": COMMIT,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "dtype": "float64",
        },
        "training": TRAINING,
        "layers": {str(layers): values(args.released, layers) for layers in LAYERS},
    }
    OUTPUT.write_text(json.dumps(rounded(made), indent=1) + "\n")


def rounded(value):
    """Ten digits."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
