"""The recipe `released` against values of the authors' released code: losses, gradients, and a
training.

tests/golden/released/make_lightweight.py computes them; nothing of that code is needed here.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from fairseq_options import read_by_fairseq
from released_pairs import EOS, EPOCHS, FIRST, MASK, PAD, PAIRS, SIZES, VOCAB, WHOLE, weights

from benchmarks.released.model import COMMIT, pairs_of_names
from fairseq_lxsr.preparation.binarise import MMapWriter
from fairseq_lxsr.recipes import read_recipe, train_command
from fairseq_lxsr.training.lightweight.parts import masking

GOLDEN = json.loads(
    (Path(__file__).parent.parent.parent / "golden" / "released" / "lightweight.json").read_text()
)
TRAINING = GOLDEN["training"]
TOTAL = "ugt+align+sim"
NO_GEN, NO_ALIGN, NO_SIM = (f"--{term}-weight 0" for term in ("gen", "align", "sim"))
TERMS = {
    "ugt": f"{NO_ALIGN} {NO_SIM}",
    "xtr": f"{NO_ALIGN} {NO_SIM} --objective xtr",
    "align": f"{NO_GEN} {NO_SIM}",
    "sim": f"{NO_GEN} {NO_ALIGN}",
    TOTAL: "",
}
# the schedule of the recipe in few updates
lr, weight_decay, warmup, decay_from = (
    TRAINING[name] for name in ("lr", "weight_decay", "warmup", "decay_from")
)
BETAS = str(tuple(TRAINING["betas"])).replace(" ", "")
SHORT = (
    f"--lr {','.join([str(lr)] * decay_from)},{lr / 10} --warmup-updates {warmup} --weight-decay "
    f"{weight_decay} "
    f"--adam-betas {BETAS}"
)
SIZE = (
    f"--encoder-embed-dim {SIZES['embed_dim']} --encoder-ffn-embed-dim {SIZES['ffn_embed_dim']} "
    f"--encoder-attention-heads {SIZES['num_heads']} --max-positions {SIZES['max_positions']} "
    "--batch-size 4"
)
EXACT = "--dropout 0 --attention-dropout 0 --cpu-precision float32"
# settings of the recipe that `paper` has not, and those of `paper` in their place: printed, or our
# reading of the text
LOSS_OF_PAPER = {
    "sim": "--sim-reduction pairs",
    "ids to predict": "--target-ids original",
    "a masked word that is in the other sentence": "--target-overlap sum",
    "LayerNorm": "--layer-norm-eps 1e-5",
}
TRAINING_OF_PAPER = {
    "optimizer": "--no-amsgrad --decoupled-weight-decay",
    "AMSGrad": "--no-amsgrad",
    "warm-up": f"--warmup-updates {warmup + 1}",
    "later epochs": f"--lr {lr}",
}

# what no loss without dropout shows: what to look at, and what it is in the released code
ELSEWHERE = {
    "attention dropout": (lambda run: run.model.encoder.layers[1].self_attn.dropout, 0.1),
    "embeddings": (lambda run: round(run.model.encoder.embed_tokens.weight.std().item(), 1), 1),
    "layers": (lambda run: len(set(map(first_weight, run.model.encoder.layers))), 1),
    "lengths of a batch": (lambda run: sorted(run.lengths()) == run.lengths(), False),
    "last batch": (lambda run: list(map(len, run.batches())), [4, 4]),
    "warm-up": (lambda run: run.learning_rate(0, epoch=1), 0.001 / 1999),
    "epochs": (
        lambda run: [run.learning_rate(5000, epoch) for epoch in (1, 3, 4, 10)],
        [1e-3, 1e-3, 1e-4, 1e-4],
    ),
}
ELSEWHERE_OF_PAPER = (
    "--attention-dropout 0 --init-weights scaled --batches length --no-drop-last "
    "--warmup-updates 2000 --lr 0.001"
)
# main.py, line 89
OPTIMIZER = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-5, "amsgrad": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with the golden pairs."""
    folder = tmp_path_factory.mktemp("released")
    pieces = "".join(f"▁{number} 1\n" for number in range(FIRST, MASK))
    for which, language in enumerate(("x", "y")):
        (folder / f"dict.{language}.txt").write_text(pieces, encoding="utf-8")
        sides = [[*pair[which], EOS] for pair in PAIRS]
        writer = MMapWriter(folder / f"train.x-y.{language}", VOCAB)
        writer.add(np.concatenate(sides), np.array([len(side) for side in sides]))
        writer.close()
    return folder


def golden_masks(source, target, index, *_) -> tuple[masking.MaskedBatch, masking.MaskedBatch]:
    """The masks of `PAIRS` in place of drawn ones."""
    masked = []
    for side, tokens in (("source", source), ("target", target)):
        places = np.array([[PAIRS[n][3]] if PAIRS[n][2] == side else [-1] for n in index])
        here = places >= 0
        ids = np.where(here, np.take_along_axis(tokens, places, axis=1), PAD)
        read = tokens.copy()
        read[here[:, 0], places[here]] = MASK
        masked.append(masking.MaskedBatch(read, ids, places.clip(0)))
    return masked[0], masked[1]


class Run:
    """A training as fairseq-train builds it from the recipe, with changed options, on the golden
    pairs.
    """

    def __init__(self, data: Path, changes: str):
        own = f"{SIZE} {changes} --cpu --disable-validation --no-save --save-dir {data / 'checkpoints'}"
        command = train_command(read_recipe("released"), str(data), own.split())
        self.cfg = convert_namespace_to_omegaconf(read_by_fairseq(command))
        self.task = tasks.setup_task(self.cfg.task)
        self.task.load_dataset("train")
        self.model = self.task.build_model(self.cfg.model)
        self.criterion = self.task.build_criterion(self.cfg.criterion)

    def with_golden_weights(self) -> "Run":
        self.model.load_state_dict(
            weights({name: value.shape for name, value in self.model.state_dict().items()})
        )
        return self

    def batch(self, numbers: Sequence[int]) -> dict:
        dataset = self.task.dataset("train")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masking, "mask_one_piece", golden_masks)
            return dataset.collater([dataset[number] for number in numbers])

    def loss(self, numbers: Sequence[int] = WHOLE) -> torch.Tensor:
        """The loss whose gradient fairseq trains with."""
        loss, pairs, _ = self.criterion(self.model.train(), self.batch(numbers))
        return loss / pairs

    def gradients(self) -> dict[str, torch.Tensor]:
        self.model.zero_grad()
        self.loss().backward()
        return {
            name: value.grad
            for name, value in self.model.named_parameters()
            if value.grad is not None
        }

    def batches(self) -> list[np.ndarray]:
        dataset = self.task.dataset("train")
        return dataset.batch_by_size(dataset.ordered_indices(), max_sentences=4)

    def lengths(self) -> list[int]:
        """Longer side of the pairs, in the order of the batches."""
        dataset = self.task.dataset("train")
        return dataset.num_tokens_vec(dataset.ordered_indices()).tolist()

    @cached_property
    def trainer(self) -> Trainer:
        return Trainer(self.cfg, self.task, self.model, self.criterion)

    def learning_rate(self, updates: int, epoch: int) -> float:
        """Of the next update, after so many."""
        self.trainer.set_num_updates(updates)
        self.trainer.lr_step_begin_epoch(epoch)
        return self.trainer.get_lr()

    def train(self) -> list[float]:
        """The loss before each update of the golden training."""
        losses = []
        for epoch, batches in enumerate(EPOCHS, start=1):
            self.trainer.begin_epoch(epoch)
            for numbers in batches:
                losses.append(self.loss(numbers).item())
                self.trainer.train_step([self.batch(numbers)])
        return losses


def first_weight(module: torch.nn.Module) -> float:
    return next(module.parameters())[0, 0].item()


def golden_run(data: Path, changes: str = "", layers: int = 2) -> Run:
    return Run(data, f"{EXACT} --encoder-layers {layers} {changes}").with_golden_weights()


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Largest relative difference of the losses of a training."""
    return max(abs(a - b) / b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("layers", "terms"), [*((2, terms) for terms in TERMS), (1, TOTAL)])
def test_losses_and_gradients_are_those_of_the_released_code(data, layers, terms):
    expected, ours = GOLDEN["layers"][str(layers)], golden_run(data, TERMS[terms], layers)
    assert ours.loss().item() == pytest.approx(expected["losses"][terms], rel=1e-6)
    found, norms = ours.gradients(), expected["norms"][terms]
    ours = {name: found[name].norm().item() if name in found else 0.0 for name in norms}
    assert ours == pytest.approx(norms, rel=1e-5)
    assert found.keys() <= norms.keys()
    if terms == TOTAL:
        for name, gradient in expected["gradients"].items():
            torch.testing.assert_close(found[name], torch.tensor(gradient), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setting", LOSS_OF_PAPER)
def test_a_setting_of_the_recipe_paper_is_another_loss(data, setting):
    expected = GOLDEN["layers"]["2"]["losses"][TOTAL]
    assert golden_run(data, LOSS_OF_PAPER[setting]).loss().item() != pytest.approx(
        expected, rel=5e-6
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_the_training_is_that_of_the_released_code(data, layers):
    expected = GOLDEN["layers"][str(layers)]["training"]
    assert largest_difference(golden_run(data, SHORT, layers).train(), expected) < 1e-5


@pytest.mark.parametrize("setting", TRAINING_OF_PAPER)
def test_a_setting_of_the_recipe_paper_is_another_training(data, setting):
    found = golden_run(data, f"{SHORT} {TRAINING_OF_PAPER[setting]}").train()
    assert largest_difference(found, GOLDEN["layers"]["2"]["training"]) > 1e-3


@pytest.fixture(scope="module")
def released_and_printed(data) -> tuple[Run, Run]:
    return Run(data, ""), Run(data, ELSEWHERE_OF_PAPER)


@pytest.mark.parametrize("setting", ELSEWHERE)
def test_settings_that_no_golden_loss_shows(released_and_printed, setting):
    look, expected = ELSEWHERE[setting]
    released, printed = map(look, released_and_printed)
    assert released == pytest.approx(expected)
    assert printed != pytest.approx(expected)


def test_settings_of_the_optimizer(released_and_printed):
    [group] = released_and_printed[0].trainer.optimizer.param_groups
    assert group.items() >= OPTIMIZER.items()


def test_the_benchmark_knows_every_weight_in_the_released_code():
    names = GOLDEN["layers"]["2"]["norms"][TOTAL]
    theirs = [name for _, parts in pairs_of_names(names) for name in parts]
    assert len(set(theirs)) == len(theirs) == 41
    assert GOLDEN["source"]["commit"] == COMMIT
