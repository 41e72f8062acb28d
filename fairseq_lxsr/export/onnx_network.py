"""The network of a model with layers as an ONNX graph, by torch."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.export.onnx_static import LEAST_NORM
from fairseq_lxsr.modules import TransformerSentenceEncoder
from fairseq_lxsr.modules.pooling import order_weights

MAX_BATCH = 65_536


class _Graph(torch.nn.Module):
    """The exported graph: ids and mask [B, T], padded at the end, to states [B, T, D] and
    embeddings [B, D].
    """

    def __init__(self, model: TransformerSentenceEncoder, unknown: int, normalize: bool):
        super().__init__()
        self.model, self.unknown, self.normalize = model, unknown, normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        config = self.model.config
        input_ids = torch.where(attention_mask > 0, input_ids, config.padding_idx)
        # one more column of padding, so that a batch of empty sentences has a column
        padded = torch.nn.functional.pad(input_ids, (0, 1), value=config.padding_idx)[
            :, : config.max_positions
        ]
        # pieces that are not in the dictionary have ids beyond it
        known = torch.where(padded < config.vocab_size, padded, self.unknown)
        embeddings, states = self.model(known)[0]
        if config.order_coefficients:
            states = states * self._share(known.ne(config.padding_idx))
        if self.normalize:
            length = embeddings.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)  # [B, 1]
            embeddings, states = embeddings / length, states / length[:, None]
        return states[:, : input_ids.shape[1]], embeddings

    def _share(self, is_token: Tensor) -> Tensor:
        """Compute the weights of states in the embedding relative to a mean: is_token [B, T] -> [B,
        T, D].
        """
        weights = order_weights(is_token, self.model.config.order_coefficients)[1:]  # [k, B, T]
        lengths = is_token.sum(dim=1, keepdim=True)  # [B, 1]
        return 1 + torch.einsum("kbt,kd->btd", weights * lengths, self.model.order)


def write_network(
    encoder: SentenceEncoder, path: Path, names: Sequence[str], normalize: bool
) -> None:
    """Write the graph of a transformer; `names` as in `write_bag`."""
    config = encoder.size
    example = torch.full((3, 7), encoder.tokenizer.unknown)
    example[1, 4:] = config.padding_idx
    longest = config.max_positions
    shape = {
        0: torch.export.Dim("sentences", max=MAX_BATCH),
        1: torch.export.Dim("pieces", max=longest),
    }
    graph = _Graph(encoder.model, encoder.tokenizer.unknown, normalize).eval()
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
