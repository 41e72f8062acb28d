"""One training step of the paper's model (`--recipe paper`) on random sentences, on any device."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.modules.network import shapes_only
from fairseq_lxsr.training.lightweight.criterion import XlingSentLoss
from fairseq_lxsr.training.lightweight.graphs import GraphedCriterion
from fairseq_lxsr.training.lightweight.model import LxsrModel
from fairseq_lxsr.training.lightweight.parts.masking import MaskingVocabulary
from fairseq_lxsr.training.lightweight.task import XlingSentConfig
from fairseq_lxsr.training.lightweight.terms import Setting, build_terms

PADDING, FIRST = 1, 4  # ids of padding and of the first piece
PIECES = 15  # of a sentence, as in the text of `train`
VOCABULARY = 50_000


class PaperStep:
    """ugt + align + sim on the sentences of a batch, and Adam.

    Args:
        device: `meta` has shapes and types only; elsewhere equal arguments give equal weights and
            sentences.
        layers: number of transformer layers.
        pairs: B, pairs of a batch.
        pieces: of each sentence.
        sizes: other sizes of the encoder than the paper's, `vocab_size` among them.
    """

    def __init__(
        self,
        device: str,
        layers: int = 2,
        pairs: int = 128,
        pieces: int = PIECES,
        **sizes: Any,
    ):
        sizes = {"vocab_size": VOCABULARY, "num_layers": layers} | sizes
        config = TransformerConfig(padding_idx=PADDING, **sizes)
        no_symbols = np.zeros(config.vocab_size, dtype=bool)
        setting = Setting(
            MaskingVocabulary(PADDING, config.vocab_size - 1, FIRST, no_symbols, no_symbols),
            [("en", "fr")],
        )
        self.pairs, self.terms = pairs, build_terms(XlingSentConfig(), setting)
        if device == "meta":
            with shapes_only():
                self.model = self._model(config)
        else:
            torch.manual_seed(1)
            self.model = self._model(config).to(device)
        self.criterion: Any = XlingSentLoss(
            SimpleNamespace(target_dictionary=None, terms=self.terms)
        ).train()
        self.batch = random_batch(pairs, pieces, config.vocab_size, device)
        # As the optimizer torch_adam of fairseq-train; torch's device `meta` has no fused form.
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=device != "meta")

    def _model(self, config: TransformerConfig) -> LxsrModel:
        return LxsrModel(TransformerSentenceEncoder(config), self.terms).train()

    def use_graphs(self) -> None:
        """Launch the step as CUDA graphs, as --cuda-graphs does."""
        self.criterion = GraphedCriterion(self.model, self.criterion)

    def loss(self) -> Tensor:
        """Loss of the batch, a sum over its pairs."""
        return self.criterion(self.model, self.batch)[0]

    def update(self) -> None:
        """Update the weights by their gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def random_batch(pairs: int, pieces: int, vocabulary: int, device: str) -> Any:
    """A batch of random sentences, of which the sources have a mask, as task `xling_sent` makes
    it.
    """
    rng = np.random.default_rng(1)
    source, target = rng.integers(FIRST, vocabulary - 1, (2, pairs, pieces))
    masked = source.copy()
    masked[:, 0] = vocabulary - 1
    tensors = {
        "source_tokens": source,
        "target_tokens": target,
        "source_masked_ids": source[:, :1],
        "target_masked_ids": np.full((pairs, 1), PADDING),
        "source": masked,
        "target": target,
    }
    batch: dict[str, Any] = {
        name: torch.from_numpy(value.copy()).to(device) for name, value in tensors.items()
    }
    sides = {name: batch.pop(name) for name in ("source", "target")}
    return batch | {"net_input": sides, "nsentences": pairs, "ntokens": 2 * pairs * pieces}
