"""The lightweight model that its authors released, with our weights and our batches.

It is the reference of the recipe `released`: Mao et al. 2021,
github.com/Mao-KU/lightweight-crosslingual-sent2vec. The user checks it out, nothing of it is in
this repository, and it only runs if its files are those of `COMMIT`.
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
# The two files that are run, and their hashes in git, so that an exported folder can be checked
# too.
CONFIG = "config.py"
MODEL = "modeling/bertModel.py"
BLOBS = {
    CONFIG: "e4699b59ffce66a81f16507e5b52a0cb97cc62b4",
    MODEL: "2af705d22e5bb212fcd126fc67e70b703223c67e",
}
# The defaults of torch.
BETAS = (0.9, 0.999)
# The linear warm-up of pytorch_warmup 0.0.4, which main.py uses in line 110. These are 1,999
# updates,
# because 1 - 0.999 is slightly more than 0.001.
WARMUP = int(2 / (1 - BETAS[1]))
PADDING = 0
OUR_PADDING = 1

BERT = "model.bert."
LAYER = "model.bert.encoder.layer.{}."
# Our modules, and their modules with the same weights; {} is the number of a layer.
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
# Weights with a row for each entry of the dictionary.
DICTIONARY_WEIGHTS = ("encoder.embed_tokens.weight", "head.bias")
POSITIONS = "encoder.embed_positions.weight"


def read_released(folder: Path, name: str) -> str:
    """Read one of the files that are run; the script ends if it has another version."""
    text = (folder / name).read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    if blob != BLOBS[name]:
        sys.exit(f"{folder / name}: blob {blob}; expected {BLOBS[name]} of commit {COMMIT}")
    return text.decode()


def run_released(folder: Path, name: str, text: str) -> ModuleType:
    """Run the text of a file as a module."""
    module = ModuleType(Path(name).stem)
    exec(compile(text, str(folder / name), "exec"), module.__dict__)
    return module


def released_config(folder: Path, **sizes: Any) -> Any:
    """Return their settings of the complete loss without dropout; `sizes` replace some."""
    config = run_released(folder, CONFIG, read_released(folder, CONFIG)).config
    config.set_config("UGT+ALIGN+SIM")
    dropout = {"emb_dropout": 0.0, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    vars(config).update(dropout | sizes)
    return config


def released_model(folder: Path, config: Any, targets: str = "ugt") -> nn.Module:
    """Return their model, which computes the loss.

    Args:
        folder: checkout of their repository.
        config: see `released_config`.
        targets: `ugt` or `xtr`. Their code describes `xtr` in comments: the masked piece has no
            probability mass, and the words of the translation have all of it.
    """
    text = read_released(folder, MODEL)
    if targets == "xtr":
        text, removed = re.subn(r"\n[^\n#]* = 0\.5 [^\n]*", "", text)
        text, replaced = re.subn(r"true_divide\(0\.5,", "true_divide(1.0,", text)
        assert (removed, replaced) == (2, 2)
    with warnings.catch_warnings():
        # It requests CUDA's autocast, on a CPU.
        warnings.simplefilter("ignore")
        return run_released(folder, MODEL, text).BilingualModel(config.vocab_size, config)


def released_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return their loss of a batch, which is a mean over pairs except for the term `sim`.

    Args:
        model: their model.
        batch: a batch from the task `xling_sent`, with one masked piece per pair.
    """
    source_masked = batch["source_masked_ids"][:, 0]
    target_masked = batch["target_masked_ids"][:, 0]
    is_source = source_masked != OUR_PADDING
    inputs = []
    for side in ("source", "target"):
        ids = batch["net_input"][side]
        inputs += [swap_padding(ids), (ids != OUR_PADDING).sum(dim=1)]
    masked = swap_padding(torch.where(is_source, source_masked, target_masked))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss, _ = model(*inputs, masked, torch.where(is_source, 1, 2))
    return loss


def swap_padding(ids: Tensor) -> Tensor:
    """Convert our ids to theirs or theirs to ours: padding is 1 in ours and 0 in theirs."""
    return torch.where(ids <= OUR_PADDING, OUR_PADDING - ids, ids)


def pairs_of_names(names: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each of our weights, and their weights that it consists of."""
    for name in names:
        module, kind = name.rsplit(".", 1)
        numbers = re.findall(r"\.(\d+)\.", module)
        general = re.sub(r"\.\d+\.", ".{}.", module)
        yield name, [f"{theirs.format(*numbers)}.{kind}" for theirs in MODULES[general]]


@torch.no_grad()
def give_weights(model: nn.Module, ours: Mapping[str, Tensor]) -> None:
    """Copy our weights into their model; they must cover all of its weights."""
    parameters = dict(model.named_parameters())
    for name, theirs in pairs_of_names(ours):
        value = ours[name]
        if name in DICTIONARY_WEIGHTS:
            value = swap_rows(value)
        if name == POSITIONS:
            # Their positions start at 1, and 0 is the position of padding.
            value = torch.cat((value.new_zeros(1, value.shape[1]), value))
        for part, rows in zip(theirs, value.chunk(len(theirs)), strict=True):
            parameter = parameters.pop(part)
            assert parameter.shape == rows.shape, (part, parameter.shape, rows.shape)
            parameter.copy_(rows)
    assert not parameters, parameters.keys()


def gradients(model: nn.Module, names: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the gradients of their weights under our names, without the position of padding."""
    parameters = dict(model.named_parameters())
    by_name = {}
    for name, theirs in pairs_of_names(names):
        value = torch.cat([gradient_of(parameters[part]) for part in theirs])
        if name in DICTIONARY_WEIGHTS:
            value = swap_rows(value)
        elif name == POSITIONS:
            value = value[1:]
        by_name[name] = value
    return by_name


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return a copy of the gradient, zeros if there is none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def swap_rows(value: Tensor) -> Tensor:
    """Swap the rows of our padding and of theirs."""
    return torch.cat((value[:2].flip(0), value[2:]))


class Training:
    """Their optimizer and schedule (main.py, lines 89 to 152) in float32.

    Their gradient scaler does nothing in float32 and is left out.

    Args:
        model: their model.
        settings: lr, betas, weight_decay, warmup in updates, and decay_from, the epoch (from 0) at
            which lr falls to a tenth.
    """

    def __init__(self, model: nn.Module, settings: Mapping[str, Any]):
        self.model = model
        self.warmup = settings["warmup"]
        self.updates = 0
        options = {name: settings[name] for name in ("lr", "betas", "weight_decay")}
        self.optimizer = torch.optim.Adam(model.parameters(), **options, amsgrad=True)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(
            self.optimizer, [settings["decay_from"]], gamma=0.1
        )

    def update(self, batch: Mapping[str, Any], epoch: int) -> float:
        """Train on a batch in an epoch, counted from 0, and return the loss before the update."""
        self.updates += 1
        with warnings.catch_warnings():
            # Later versions of torch deprecate the epoch as an argument.
            warnings.simplefilter("ignore")
            self.schedule.step(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] *= min(1, self.updates / self.warmup)
        loss = released_loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
