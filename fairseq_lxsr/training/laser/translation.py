"""Translation through one vector, the base of LASER and T-LASER."""

from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor

from fairseq_lxsr.modules import LaserSentenceEncoder, TLaserSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast, cpu_autocast_dtype

EncoderOut = dict[str, Tensor]


class TranslationEncoder(FairseqEncoder):
    """Adapts a sentence encoder to fairseq's decoders and beam search."""

    def __init__(self, dictionary, network: LaserSentenceEncoder | TLaserSentenceEncoder):
        super().__init__(dictionary)
        self.network = network

    def forward(
        self, src_tokens: Tensor, target_language: Tensor, src_lengths: Tensor | None = None
    ) -> EncoderOut:
        """Encode src_tokens [B, S] without EOS as embedding [B, E]; target_language [B] is passed
        on.
        """
        return {"embedding": self.network(src_tokens), "target_language": target_language}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return {name: value.index_select(0, new_order) for name, value in encoder_out.items()}

    def max_positions(self) -> int:
        return self.network.config.max_positions or int(1e9)


class SentenceDecoder(FairseqIncrementalDecoder):
    """Reads only the embedding of the source; sub-classes compute the states and have an
    `output_projection`.
    """

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Compute the logits of the next pieces [B, T, V] from the target after an EOS [B, T].

        With `incremental_state`, the cache of beam search, only the last step is computed, [B, 1,
        V]; with `positions` [P], indices into the flattened target, logits are [P, V].
        """
        states = self.states(prev_output_tokens, encoder_out, incremental_state)  # [B, T, D]
        if positions is not None:
            states = states.flatten(0, 1)[positions]  # [P, D]
        return self.output_projection(states), None

    def states(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict | None
    ) -> Tensor:
        """Compute states [B, T, D] of prev_output_tokens [B, T], or [B, 1, D] with
        `incremental_state`.
        """
        raise NotImplementedError


class SentenceTranslationModel(FairseqEncoderDecoderModel):
    """Translates through the sentence embedding, which is all that the decoder sees of the
    source.
    """

    def __init__(
        self,
        encoder: FairseqEncoder,
        decoder: FairseqIncrementalDecoder,
        cpu_precision: str = "float32",
    ):
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
        """Translate with teacher forcing; sources [B, S] have no EOS, the rest is as in
        `SentenceDecoder`.

        Beside the logits it returns embeddings `source` [B, E] and, of `target_tokens` [C, T'] as
        the encoder reads them, `target` [C, E].
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
