"""The lightweight model as its authors released it, with our weights and our batches: the reference
of `released`.

Mao et al. 2021, github.com/Mao-KU/lightweight-crosslingual-sent2vec, checked out by the user;
nothing of it is here. It runs only if its files are those of `COMMIT`.
"""

import hashlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

COMMIT = "2ea26dbadaf510f92afc7dc098404d8a68e4c963"
# git's names of the contents of the two files that are run, so that an exported folder can be
# checked too
CONFIG, MODEL = "config.py", "modeling/bertModel.py"
BLOBS = {
    CONFIG: "e4699b59ffce66a81f16507e5b52a0cb97cc62b4",
    MODEL: "2af705d22e5bb212fcd126fc67e70b703223c67e",
}
# main.py, line 110: linear warm-up of pytorch_warmup 0.0.4, over int(2 / (1 - beta2)) updates
BETAS = (0.9, 0.999)  # torch's own
WARMUP = int(2 / (1 - BETAS[1]))  # 1,999: 1 - 0.999 is a little more than 0.001
PADDING, OUR_PADDING = 0, 1

# our modules and theirs that hold the same weights; {} is the number of a layer
BERT, LAYER = "model.bert.", "model.bert.encoder.layer.{}."
MODULES = {
    "encoder.embed_tokens": (BERT + "embedding.word_embedding.embedding",),
    "encoder.embed_positions": (BERT + "embedding.position_embedding.position_embeddings",),
    "encoder.layer_norm": (BERT + "embedding.layer_norm",),
    "encoder.layers.{}.self_attn.in_proj": tuple(
        f"{LAYER}attention.self_attention.{part}" for part in ("query", "key", "value")
    ),
    "encoder.layers.{}.self_attn.out_proj": (LAYER + "attention.output.dense",),
    "encoder.layers.{}.self_attn_layer_norm": (LAYER + "attention.output.LayerNorm",),
    "encoder.layers.{}.fc1": (LAYER + "intermediate.dense",),
    "encoder.layers.{}.fc2": (LAYER + "output.dense",),
    "encoder.layers.{}.final_layer_norm": (LAYER + "output.LayerNorm",),
    "head.dense": ("model.transform.dense",),
    "head.layer_norm": ("model.transform.LayerNorm",),
    "head": ("model.decoder",),
}
OF_ENTRIES = ("encoder.embed_tokens.weight", "head.bias")  # a row for each entry of the dictionary
POSITIONS = "encoder.embed_positions.weight"


def read_released(folder: Path, name: str) -> str:
    """Read one of the files that are run; end where it is another version of it."""
    text = (folder / name).read_bytes()
    found = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    if found != BLOBS[name]:
        sys.exit(f"{folder / name}: contents {found}; expected {BLOBS[name]}, of commit {COMMIT}")
    return text.decode()


def run_released(folder: Path, name: str, text: str) -> ModuleType:
    """Run the text of a file as a module."""
    module = ModuleType(Path(name).stem)
    exec(compile(text, str(folder / name), "exec"), module.__dict__)
    return module


def released_config(folder: Path, **sizes: Any) -> Any:
    """Their settings of the whole loss without dropout; `sizes` replace some."""
    config = run_released(folder, CONFIG, read_released(folder, CONFIG)).config
    config.set_config("UGT+ALIGN+SIM")
    dropout = {"emb_dropout": 0.0, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    vars(config).update(dropout | sizes)
    return config


def released_model(folder: Path, config: Any, targets: str = "ugt") -> nn.Module:
    """Their model and loss.

    Args:
        folder: checkout of their repository.
        config: see `released_config`.
        targets: `ugt` or `xtr`. Their code has `xtr` in comments: no mass on the masked piece,
            all of it on the words of the translation.
    """
    text = read_released(folder, MODEL)
    if targets == "xtr":
        text, removed = re.subn(r"\n[^\n#]* = 0\.5 [^\n]*", "", text)
        text, replaced = re.subn(r"true_divide\(0\.5,", "true_divide(1.0,", text)
        assert (removed, replaced) == (2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autocast for CUDA, on a CPU
        return run_released(folder, MODEL, text).BilingualModel(config.vocab_size, config)


def released_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Their loss, a mean over pairs but for sim, of a batch of task `xling_sent` that masks one
    piece of each pair.
    """
    masked = batch["source_masked_ids"][:, 0], batch["target_masked_ids"][:, 0]
    is_source = masked[0] != OUR_PADDING
    sides = [batch["net_input"][side] for side in ("source", "target")]
    inputs = [
        part for ids in sides for part in (swap_padding(ids), (ids != OUR_PADDING).sum(dim=1))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss, _ = model(
            *inputs, swap_padding(torch.where(is_source, *masked)), torch.where(is_source, 1, 2)
        )
    return loss


def swap_padding(ids: Tensor) -> Tensor:
    """Turn our ids into theirs, or back: padding is 1 here and 0 there."""
    return torch.where(ids <= OUR_PADDING, OUR_PADDING - ids, ids)


def pairs_of_names(names: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each of our weights, and those of theirs that it consists of."""
    for name in names:
        module, kind = name.rsplit(".", 1)
        number = re.search(r"\.(\d+)\.", module)
        general = re.sub(r"\.\d+\.", ".{}.", module)
        yield (
            name,
            [
                f"{theirs.format(*number.groups() if number else ())}.{kind}"
                for theirs in MODULES[general]
            ],
        )


@torch.no_grad()
def give_weights(model: nn.Module, ours: Mapping[str, Tensor]) -> None:
    """Give their model our weights; each of theirs must get one."""
    parameters = dict(model.named_parameters())
    for name, theirs in pairs_of_names(ours):
        value = ours[name]
        if name in OF_ENTRIES:
            value = swap_rows(value)
        if name == POSITIONS:  # theirs begin at 1; 0 is the position of padding
            value = torch.cat((value.new_zeros(1, value.shape[1]), value))
        for part, rows in zip(theirs, value.chunk(len(theirs)), strict=True):
            parameter = parameters.pop(part)
            assert parameter.shape == rows.shape, (part, parameter.shape, rows.shape)
            parameter.copy_(rows)
    assert not parameters, parameters.keys()


def gradients(model: nn.Module, names: Mapping[str, Any]) -> dict[str, Tensor]:
    """The gradients of their weights under our names, without that of the position of padding."""
    parameters = dict(model.named_parameters())
    found = {}
    for name, theirs in pairs_of_names(names):
        value = torch.cat([gradient_of(parameters[part]) for part in theirs])
        found[name] = (
            swap_rows(value) if name in OF_ENTRIES else value[1:] if name == POSITIONS else value
        )
    return found


def gradient_of(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def swap_rows(value: Tensor) -> Tensor:
    """Exchange the rows of our padding and of theirs."""
    return torch.cat((value[:2].flip(0), value[2:]))


class Training:
    """Their optimizer and schedule (main.py, lines 89 to 152), in float32, where their gradient
    scaler does nothing.

    Args:
        model: their model.
        settings: lr, betas, weight_decay, warmup in updates, and decay_from, the epoch (from 0) of
            a tenth of lr.
    """

    def __init__(self, model: nn.Module, settings: Mapping[str, Any]):
        self.model, self.warmup, self.updates = model, settings["warmup"], 0
        options = {name: settings[name] for name in ("lr", "betas", "weight_decay")}
        self.optimizer = torch.optim.Adam(model.parameters(), **options, amsgrad=True)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(
            self.optimizer, [settings["decay_from"]], gamma=0.1
        )

    def update(self, batch: Mapping[str, Any], epoch: int) -> float:
        """Train on a batch in an epoch, from 0. Returns: the loss before."""
        self.updates += 1
        with warnings.catch_warnings():
            # of the epoch, which later versions of torch do not take
            warnings.simplefilter("ignore")
            self.schedule.step(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] *= min(1, self.updates / self.warmup)
        loss = released_loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
