"""Translation through one vector: what LASER and T-LASER share."""

from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor

from fairseq_lxsr.modules import LaserSentenceEncoder, TLaserSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast, cpu_autocast_dtype

EncoderOut = dict[str, Tensor]


class SentenceEncoderOfTranslation(FairseqEncoder):
    """A sentence encoder as fairseq's decoders and its beam search expect it."""

    def __init__(self, dictionary, network: LaserSentenceEncoder | TLaserSentenceEncoder):
        super().__init__(dictionary)
        self.network = network

    def forward(self, src_tokens: Tensor, target_language: Tensor, src_lengths: Tensor | None = None) -> EncoderOut:
        """src_tokens [B, S] without EOS, target_language [B] -> embedding [B, E] and target_language."""
        return {"embedding": self.network(src_tokens), "target_language": target_language}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return {name: value.index_select(0, new_order) for name, value in encoder_out.items()}

    def max_positions(self) -> int:
        return self.network.config.max_positions or int(1e9)


class SentenceDecoder(FairseqIncrementalDecoder):
    """Reads nothing of the source but its embedding; sub-classes give the states and have an `output_projection`."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """prev_output_tokens [B, T] -> logits [B, T, V], of the last step only with `incremental_state`.

        Args:
            `encoder_out`, `positions` as in `SentenceTranslationModel`.
        """
        states = self.states(prev_output_tokens, encoder_out, incremental_state)  # [B, T, D]
        if positions is not None:
            states = states.flatten(0, 1)[positions]  # [P, D]
        return self.output_projection(states), None

    def states(self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict | None) -> Tensor:
        """prev_output_tokens [B, T] -> [B, T, D], [B, 1, D] with `incremental_state`."""
        raise NotImplementedError


class SentenceTranslationModel(FairseqEncoderDecoderModel):
    """Source to sentence embedding to target; the decoder sees nothing else of the source."""

    def __init__(self, encoder: FairseqEncoder, decoder: FairseqIncrementalDecoder, cpu_precision: str = "float32"):
        super().__init__(encoder, decoder)
        self.cpu_dtype = cpu_autocast_dtype(cpu_precision)

    def forward(
        self,
        src_tokens: Tensor,
        target_language: Tensor,
        prev_output_tokens: Tensor,
        positions: Tensor | None = None,
        target_tokens: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Translate with teacher forcing.

        Args:
            src_tokens: [B, S] ids without EOS.
            target_language: [B] numbers.
            prev_output_tokens: [B, T] the target after an EOS.
            positions: [P] where, in the target read as one row, logits are wanted; None for all.
            target_tokens: [C, T - 1] targets as the encoder reads them, where their embeddings are wanted too.

        Returns:
            logits [P, V] or [B, T, V]; embeddings `source` [B, E] and `target` [C, E] (or None).
        """
        with cpu_autocast(self.cpu_dtype, src_tokens):
            network, target = self.encoder.network, None
            if target_tokens is None:
                source = network(src_tokens)
            else:
                source, target = network.forward_both(src_tokens, target_tokens)
            encoder_out = {"embedding": source, "target_language": target_language}
            logits, _ = self.decoder(prev_output_tokens, encoder_out, positions=positions)
        return logits, {"source": source, "target": target}
