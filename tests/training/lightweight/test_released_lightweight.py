"""The recipe `released` against losses, gradients and a training of the code of the authors.

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
TERMS = {
    "ugt": "--align-weight 0 --sim-weight 0",
    "xtr": "--align-weight 0 --sim-weight 0 --objective xtr",
    "align": "--gen-weight 0 --sim-weight 0",
    "sim": "--gen-weight 0 --align-weight 0",
    TOTAL: "",
}
# The schedule of the recipe in few updates.
LR = TRAINING["lr"]
WARMUP = TRAINING["warmup"]
RATES = ",".join([str(LR)] * TRAINING["decay_from"] + [str(LR / 10)])
BETAS = str(tuple(TRAINING["betas"])).replace(" ", "")
SHORT = (
    f"--lr {RATES} --warmup-updates {WARMUP} --weight-decay {TRAINING['weight_decay']} "
    f"--adam-betas {BETAS}"
)
SIZE = (
    f"--encoder-embed-dim {SIZES['embed_dim']} --encoder-ffn-embed-dim {SIZES['ffn_embed_dim']} "
    f"--encoder-attention-heads {SIZES['num_heads']} --max-positions {SIZES['max_positions']} "
    "--batch-size 4"
)
EXACT = "--dropout 0 --attention-dropout 0 --cpu-precision float32"
# Options of the recipe `paper` that differ: as printed in the paper, or as we understand it.
LOSS_OF_PAPER = {
    "sim": "--sim-reduction pairs",
    "ids to predict": "--target-ids original",
    "a masked word that is in the other sentence": "--target-overlap sum",
    "LayerNorm": "--layer-norm-eps 1e-5",
}
TRAINING_OF_PAPER = {
    "optimizer": "--no-amsgrad --decoupled-weight-decay",
    "AMSGrad": "--no-amsgrad",
    "warm-up": f"--warmup-updates {WARMUP + 1}",
    "later epochs": f"--lr {LR}",
}

# Settings that do not change the golden losses: a function that reads each from a run, and its
# value in the released code.
OTHER_SETTINGS = {
    "attention dropout": (lambda run: run.model.encoder.layers[1].self_attn.dropout, 0.1),
    "embeddings": (lambda run: round(run.model.encoder.embed_tokens.weight.std().item(), 1), 1),
    "layers": (lambda run: len({first_weight(layer) for layer in run.model.encoder.layers}), 1),
    "lengths of a batch": (lambda run: sorted(run.lengths()) == run.lengths(), False),
    "last batch": (lambda run: [len(batch) for batch in run.batches()], [4, 4]),
    "warm-up": (lambda run: run.learning_rate(0, epoch=1), 0.001 / 1999),
    "epochs": (
        lambda run: [run.learning_rate(5000, epoch) for epoch in (1, 3, 4, 10)],
        [1e-3, 1e-3, 1e-4, 1e-4],
    ),
}
OTHER_SETTINGS_OF_PAPER = (
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
    for side, language in enumerate(("x", "y")):
        (folder / f"dict.{language}.txt").write_text(pieces, encoding="utf-8")
        sentences = [[*pair[side], EOS] for pair in PAIRS]
        writer = MMapWriter(folder / f"train.x-y.{language}", VOCAB)
        lengths = np.array([len(sentence) for sentence in sentences])
        writer.add(np.concatenate(sentences), lengths)
        writer.close()
    return folder


def golden_masks(source, target, index, *_) -> tuple[masking.MaskedBatch, masking.MaskedBatch]:
    """The masks of `PAIRS` instead of drawn ones."""
    masked = []
    for side, tokens in (("source", source), ("target", target)):
        read = tokens.copy()
        ids = np.full((len(tokens), 1), PAD)
        positions = np.zeros((len(tokens), 1), dtype=int)
        for row, number in enumerate(index):
            _, _, masked_side, position = PAIRS[number]
            if masked_side == side:
                positions[row] = position
                ids[row] = tokens[row, position]
                read[row, position] = MASK
        masked.append(masking.MaskedBatch(read, ids, positions))
    return masked[0], masked[1]


class Run:
    """A training of the golden pairs, as fairseq-train builds it from the recipe, with changed
    options.
    """

    def __init__(self, data: Path, changes: str):
        save_dir = data / "checkpoints"
        options = f"{SIZE} {changes} --cpu --disable-validation --no-save --save-dir {save_dir}"
        command = train_command(read_recipe("released"), str(data), options.split())
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
        """The loss per pair, whose gradient fairseq uses."""
        loss, num_pairs, _ = self.criterion(self.model.train(), self.batch(numbers))
        return loss / num_pairs

    def gradients(self) -> dict[str, torch.Tensor]:
        self.model.zero_grad()
        self.loss().backward()
        gradients = {}
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                gradients[name] = weight.grad
        return gradients

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
        """The learning rate after a number of updates."""
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


def largest_difference(losses: Sequence[float], expected_losses: Sequence[float]) -> float:
    """Largest relative difference of the losses of a training."""
    differences = []
    for loss, expected in zip(losses, expected_losses, strict=True):
        differences.append(abs(loss - expected) / expected)
    return max(differences)


@pytest.mark.parametrize(
    ("layers", "terms"),
    [(2, "ugt"), (2, "xtr"), (2, "align"), (2, "sim"), (2, TOTAL), (1, TOTAL)],
)
def test_losses_and_gradients_are_those_of_the_released_code(data, layers, terms):
    expected = GOLDEN["layers"][str(layers)]
    run = golden_run(data, TERMS[terms], layers)
    assert run.loss().item() == pytest.approx(expected["losses"][terms], rel=1e-6)
    gradients = run.gradients()
    expected_norms = expected["norms"][terms]
    norms = dict.fromkeys(expected_norms, 0.0)
    for name, gradient in gradients.items():
        norms[name] = gradient.norm().item()
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    if terms == TOTAL:
        for name, gradient in expected["gradients"].items():
            expected_gradient = torch.tensor(gradient)
            torch.testing.assert_close(gradients[name], expected_gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setting", LOSS_OF_PAPER)
def test_a_setting_of_the_recipe_paper_gives_another_loss(data, setting):
    expected = GOLDEN["layers"]["2"]["losses"][TOTAL]
    loss = golden_run(data, LOSS_OF_PAPER[setting]).loss().item()
    assert loss != pytest.approx(expected, rel=5e-6)


@pytest.mark.parametrize("layers", [1, 2])
def test_losses_of_a_training_are_those_of_the_released_code(data, layers):
    losses = golden_run(data, SHORT, layers).train()
    assert largest_difference(losses, GOLDEN["layers"][str(layers)]["training"]) < 1e-5


@pytest.mark.parametrize("setting", TRAINING_OF_PAPER)
def test_a_setting_of_the_recipe_paper_gives_another_training(data, setting):
    losses = golden_run(data, f"{SHORT} {TRAINING_OF_PAPER[setting]}").train()
    assert largest_difference(losses, GOLDEN["layers"]["2"]["training"]) > 1e-3


@pytest.fixture(scope="module")
def released_run(data) -> Run:
    return Run(data, "")


@pytest.fixture(scope="module")
def paper_run(data) -> Run:
    return Run(data, OTHER_SETTINGS_OF_PAPER)


@pytest.mark.parametrize("setting", OTHER_SETTINGS)
def test_settings_that_do_not_change_the_golden_losses_are_those_of_the_released_code(
    released_run, paper_run, setting
):
    read, expected = OTHER_SETTINGS[setting]
    assert read(released_run) == pytest.approx(expected)
    assert read(paper_run) != pytest.approx(expected)


def test_settings_of_the_optimizer_are_those_of_the_released_code(released_run):
    [group] = released_run.trainer.optimizer.param_groups
    assert group.items() >= OPTIMIZER.items()


def test_the_benchmark_has_the_names_of_all_weights_of_the_released_code():
    released_names = []
    for _, parts in pairs_of_names(GOLDEN["layers"]["2"]["norms"][TOTAL]):
        released_names += parts
    assert len(set(released_names)) == len(released_names) == 41
    assert GOLDEN["source"]["commit"] == COMMIT
