"""Writes a model with layers as an ONNX graph; torch traces the network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.export.onnx_static import LEAST_NORM
from fairseq_lxsr.modules import TransformerSentenceEncoder
from fairseq_lxsr.modules.pooling import order_weights

# Upper bound of the dynamic batch size.
MAX_BATCH = 65_536


class _Graph(torch.nn.Module):
    """The network to export, with ids and mask as inputs.

    Args:
        model: the network.
        rows: row of the embedding table for each id, int64. Larger ids are unknown pieces.
        unknown: id of the unknown piece.
        normalize: scale embeddings to unit length.
    """

    def __init__(
        self, model: TransformerSentenceEncoder, rows: Tensor, unknown: int, normalize: bool
    ):
        super().__init__()
        self.model = model
        self.rows = torch.nn.Buffer(rows)
        self.unknown = unknown
        self.normalize = normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute states [B, T, D] and embeddings [B, D] from ids and mask [B, T].

        Sentences are padded at the end.
        """
        config = self.model.config
        input_ids = torch.where(attention_mask > 0, input_ids, config.padding_idx)
        # Add a padding column, so that a batch of empty sentences has at least one column.
        padded = torch.nn.functional.pad(input_ids, (0, 1), value=config.padding_idx)
        padded = padded[:, : config.max_positions]
        ids = self.rows[torch.where(padded < len(self.rows), padded, self.unknown)]
        embeddings, states = self.model(ids)[0]
        if config.order_coefficients:
            states = states * self._shares(ids.ne(config.padding_idx))
        if self.normalize:
            # [B, 1]
            length = embeddings.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
            embeddings = embeddings / length
            states = states / length[:, None]
        return states[:, : input_ids.shape[1]], embeddings

    def _shares(self, is_token: Tensor) -> Tensor:
        """Compute pooling weights relative to plain mean pooling: is_token [B, T] -> [B, T, D]."""
        # [k, B, T]
        weights = order_weights(is_token, self.model.config.order_coefficients)[1:]
        # [B, 1]
        lengths = is_token.sum(dim=1, keepdim=True)
        return 1 + torch.einsum("kbt,kd->btd", weights * lengths, self.model.order)


def write_network(
    encoder: SentenceEncoder, rows: np.ndarray, path: Path, names: Sequence[str], normalize: bool
) -> None:
    """Write the graph of a model with layers; see `write_bag` for the arguments."""
    size = encoder.size
    example = torch.full((3, 7), encoder.tokenizer.unknown)
    example[1, 4:] = size.padding_idx
    shape = {
        0: torch.export.Dim("sentences", max=MAX_BATCH),
        1: torch.export.Dim("pieces", max=size.max_positions),
    }
    unknown = encoder.tokenizer.unknown
    graph = _Graph(encoder.model, torch.from_numpy(rows), unknown, normalize).eval()
    program = torch.onnx.export(
        graph,
        (example, torch.ones_like(example)),
        input_names=names[:2],
        output_names=names[2:],
        dynamic_shapes=(shape, shape),
        dynamo=True,
        external_data=False,
    )
    assert program is not None
    program.save(str(path))
