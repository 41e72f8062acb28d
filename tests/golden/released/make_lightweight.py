"""Makes lightweight.json: losses, gradients and a training of the released lightweight model.

git clone https://github.com/Mao-KU/lightweight-crosslingual-sent2vec RELEASED
PYTHONPATH=.:tests python tests/golden/released/make_lightweight.py --released RELEASED

It runs `modeling/bertModel.py` of that repository in float64 without dropout, on the weights and
pairs of `tests/released_pairs.py`. The names of weights are those of this package.
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
# Unlike the released values, so that few updates show the schedule, weight decay and AMSGrad.
TRAINING = {"lr": 0.01, "weight_decay": 0.02, "warmup": 5, "decay_from": 3, "betas": [0.8, 0.8]}


def batch_of(numbers) -> dict[str, Any]:
    """Return a batch of the pairs with these numbers, as the task of this package makes it."""
    net_input = {}
    masked_ids = {}
    for side, name in enumerate(("source", "target")):
        rows = []
        pieces = []
        for number in numbers:
            ids = PAIRS[number][side]
            masked_side = PAIRS[number][2]
            position = PAIRS[number][3]
            if masked_side == name:
                rows.append(masked(ids, position))
                pieces.append([ids[position]])
            else:
                rows.append(ids)
                pieces.append([PAD])
        longest = max(map(len, rows))
        net_input[name] = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
        masked_ids[f"{name}_masked_ids"] = torch.tensor(pieces)
    return {"net_input": net_input, **masked_ids}


def weight_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    encoder = TransformerSentenceEncoder(TransformerConfig(VOCAB, PAD, num_layers=layers, **SIZES))
    head = ReconstructionHead(SIZES["embed_dim"], SIZES["embed_dim"], VOCAB)
    shapes = {}
    for prefix, module in (("encoder", encoder), ("head", head)):
        for name, value in module.state_dict().items():
            shapes[f"{prefix}.{name}"] = tuple(value.shape)
    return shapes


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
    give_weights(model, weights(weight_shapes(layers)))
    return model


def loss_and_gradients(model: nn.Module, names) -> tuple[float, dict[str, Tensor]]:
    loss = released_loss(model, batch_of(WHOLE))
    loss.backward()
    return loss.item(), gradients(model, names)


def values(folder: Path, layers: int) -> dict[str, Any]:
    """Compute losses and norms of gradients of each weighted term, and of the published sum."""
    names = weight_shapes(layers)

    def measure(*kind) -> tuple[float, dict[str, Tensor]]:
        return loss_and_gradients(build(folder, layers, *kind), names)

    ugt = measure("ugt", False, False)
    total = measure("ugt")
    runs = {
        "ugt": ugt,
        "xtr": measure("xtr", False, False),
        "align": difference(measure("ugt", True, False), ugt),
        "sim": difference(measure("ugt", False, True), ugt),
        "ugt+align+sim": total,
    }
    losses = {}
    norms = {}
    for run, (loss, run_gradients) in runs.items():
        losses[run] = loss
        norms[run] = {name: value.norm().item() for name, value in run_gradients.items()}
    return {
        "losses": losses,
        "norms": norms,
        "gradients": {name: total[1][name].tolist() for name in WHOLE_TENSORS},
        "training": train(build(folder, layers)),
    }


def difference(total: tuple[float, dict[str, Tensor]], part: tuple[float, dict[str, Tensor]]):
    """Return the loss and gradients of `total` without those of `part`."""
    total_loss, total_gradients = total
    part_loss, part_gradients = part
    gradients_without_part = {
        name: value - part_gradients[name] for name, value in total_gradients.items()
    }
    return total_loss - part_loss, gradients_without_part


def train(model: nn.Module) -> list[float]:
    """Return the loss before each update."""
    training = Training(model, TRAINING)
    losses = []
    for epoch, batches in enumerate(EPOCHS):
        for batch in batches:
            losses.append(training.update(batch_of(batch), epoch))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--released", type=Path, required=True, metavar="DIR", help="checkout of their repository"
    )
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    result = {
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
    OUTPUT.write_text(json.dumps(rounded(result), indent=1) + "\n")


def rounded(value):
    """Return nested values with floats of ten digits."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
