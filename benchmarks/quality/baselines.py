"""What users would train instead: sentence-transformers with MultipleNegativesRankingLoss.

The baselines have the same pairs and word pieces as our models.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.models import StaticEmbedding
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

from benchmarks.models import random_encoder, read_fast_tokenizer
from fairseq_lxsr.export.st_folder import export_sentence_transformers

# Duration in seconds of a trial that measures the speed. The number of steps follows from it, so
# that the learning rate falls to zero at the end of the time.
TRIAL = 30


class StopAfter(TrainerCallback):
    """Ends training after some seconds.

    Attributes:
        ends: end time of each step.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.ends: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        # The trainer may also have set this, after its last step.
        if self.ends[-1] - self.start > self.seconds:
            control.should_training_stop = True


def make_static(data_bin: Path, dim: int) -> SentenceTransformer:
    """Return a StaticEmbedding model over the pieces of a data folder."""
    embedding = StaticEmbedding(read_fast_tokenizer(data_bin), embedding_dim=dim)
    return SentenceTransformer(modules=[embedding])


def make_transformer(data_bin: Path, folder: Path, config: dict) -> SentenceTransformer:
    """Return our encoder with random weights, in the form of sentence-transformers."""
    encoder = random_encoder(folder / "start", data_bin, **config)
    export_sentence_transformers(encoder, folder / "st")
    return SentenceTransformer(str(folder / "st"))


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Attributes:
        batch_size: number of pairs of a batch.
        learning_rate: largest learning rate; it rises for a tenth of the steps and then falls
            linearly to zero.
        bf16: whether matrix products are in bfloat16.
        loss: arguments of MultipleNegativesRankingLoss.
    """

    batch_size: int
    learning_rate: float
    bf16: bool = False
    loss: dict = field(default_factory=dict)

    def run(
        self,
        model: SentenceTransformer,
        data: Dataset,
        folder: Path,
        seconds: float,
        steps: int,
        seed: int,
    ) -> list[float]:
        """Train for some seconds or steps, and return the end time of each step."""
        torch.manual_seed(seed)
        stop = StopAfter(seconds)
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=steps,
            per_device_train_batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warmup_steps=steps // 10,
            bf16=self.bf16,
            use_cpu=model.device.type == "cpu",
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        loss = MultipleNegativesRankingLoss(model, **self.loss)
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[stop]
        )
        trainer.train()
        return stop.ends


def train(
    model: SentenceTransformer,
    pairs: list[tuple[str, str]],
    folder: Path,
    seed: int,
    training: Training,
    minutes: float,
    steps: int | None = None,
) -> int:
    """Train for some minutes or steps, and return the number of steps.

    Args:
        model: the model.
        pairs: training pairs.
        folder: the trainer's output folder.
        seed: random seed.
        training: batch size, learning rate and loss.
        minutes: duration of the training.
        steps: number of steps; None to train for `minutes`.
    """
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]
    data = Dataset.from_dict({"anchor": sources, "positive": targets})
    if steps:
        return len(training.run(model, data, folder, math.inf, steps, seed))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trial_steps = len(training.run(model, data, folder, TRIAL, 10**6, seed))
    model.load_state_dict(start)
    steps = max(10, int(trial_steps / TRIAL * 60 * minutes))
    return len(training.run(model, data, folder, 60 * minutes, steps, seed))


def encoder(model: SentenceTransformer) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that encodes sentences as float32."""

    def encode(sentences: Sequence[str]) -> np.ndarray:
        vectors = model.encode(list(sentences), batch_size=256, show_progress_bar=False)
        return vectors.astype(np.float32)

    return encode
