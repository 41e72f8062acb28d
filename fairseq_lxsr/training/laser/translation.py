"""Base classes of LASER and T-LASER, which translate through a single sentence embedding."""

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
        """Encode source sentences.

        Args:
            src_tokens: source ids without EOS [B, S].
            target_language: target language indices [B], which are passed through.
            src_lengths: ignored.

        Returns:
            `embedding` [B, E] and `target_language` [B].
        """
        return {"embedding": self.network(src_tokens), "target_language": target_language}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return {name: value.index_select(0, new_order) for name, value in encoder_out.items()}

    def max_positions(self) -> int:
        return self.network.config.max_positions or int(1e9)


class SentenceDecoder(FairseqIncrementalDecoder):
    """Decodes from the sentence embedding. Subclasses define `states` and `output_projection`."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Compute the logits of the next pieces.

        Args:
            prev_output_tokens: EOS and the target so far [B, T].
            encoder_out: output of `TranslationEncoder`.
            incremental_state: beam search cache; if given, only the last step is computed.
            positions: indices into the flattened target [P]; None for all positions.

        Returns:
            Logits [B, T, V]; [B, 1, V] with a cache, or [P, V] with positions. The second value is
            None, which fairseq expects.
        """
        # [B, T, D]
        states = self.states(prev_output_tokens, encoder_out, incremental_state)
        if positions is not None:
            # [P, D]
            states = states.flatten(0, 1)[positions]
        return self.output_projection(states), None

    def states(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict | None
    ) -> Tensor:
        """Compute the decoder states; for the arguments, see `forward`.

        Returns:
            States [B, T, D], or [B, 1, D] with a cache.
        """
        raise NotImplementedError


class SentenceTranslationModel(FairseqEncoderDecoderModel):
    """Encoder-decoder model whose decoder sees the source only as a sentence embedding.

    Args:
        encoder: a `TranslationEncoder`.
        decoder: a `SentenceDecoder`.
        cpu_precision: precision of matrix products on a CPU.
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
        """Translate with teacher forcing.

        Args:
            src_tokens: source ids without EOS [B, S].
            target_language: target language indices [B].
            prev_output_tokens: EOS and the targets [B, T].
            positions: indices into the flattened targets [P]; None for all positions.
            target_tokens: targets as encoder input [C, T'], if they are to be embedded too.

        Returns:
            Logits (see `SentenceDecoder`), and the embeddings `source` [B, E] and `target` [C, E].
        """
        with cpu_autocast(self.cpu_dtype, src_tokens):
            network = self.encoder.network
            target = None
            if target_tokens is None:
                source = network(src_tokens)
            else:
                source, target = network.forward_both(src_tokens, target_tokens)
            encoder_out = {"embedding": source, "target_language": target_language}
            logits, _ = self.decoder(prev_output_tokens, encoder_out, positions=positions)
        return logits, {"source": source, "target": target}
