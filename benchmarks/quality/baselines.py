"""What users would train instead: sentence-transformers, MultipleNegativesRankingLoss, the same
pairs and pieces.
"""

import math
import time
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

TRIAL = 30  # seconds that measure the speed, so that the learning rate can fall to zero at the end of the time


class StopAfter(TrainerCallback):
    """Ends training after some seconds; notes when each step ended."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.ends: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        # else as the trainer says, whose steps may be done
        if self.ends[-1] - self.start > self.seconds:
            control.should_training_stop = True


def make_static(data_bin: Path, dim: int) -> SentenceTransformer:
    return SentenceTransformer(
        modules=[StaticEmbedding(read_fast_tokenizer(data_bin), embedding_dim=dim)]
    )


def make_transformer(data_bin: Path, folder: Path, config: dict) -> SentenceTransformer:
    """The encoder of ours with random weights, as a BERT."""
    export_sentence_transformers(
        random_encoder(folder / "start", data_bin, **config), folder / "st"
    )
    return SentenceTransformer(str(folder / "st"))


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Args:
        batch_size: pairs of a batch.
        learning_rate: the largest; it rises for a tenth of the steps and then falls linearly to
            zero.
        bf16: matrix products in bfloat16.
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
        """Train for so many seconds or steps. Returns: the time at which each step ended."""
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
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[stop]
        ).train()
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
    """Train for so many minutes, or so many steps. Returns: the number of steps."""
    data = Dataset.from_dict(
        dict(zip(("anchor", "positive"), map(list, zip(*pairs, strict=True)), strict=True))
    )
    if steps:
        return len(training.run(model, data, folder, math.inf, steps, seed))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    steps = int(len(training.run(model, data, folder, TRIAL, 10**6, seed)) / TRIAL * 60 * minutes)
    model.load_state_dict(start)
    return len(training.run(model, data, folder, 60 * minutes, max(10, steps), seed))


def encoder(model: SentenceTransformer):
    def encode(sentences) -> np.ndarray:
        return model.encode(list(sentences), batch_size=256, show_progress_bar=False).astype(
            np.float32
        )

    return encode
