"""Translation through one vector: what LASER and T-LASER share."""

import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor

from fairseq_lxsr.modules import LaserSentenceEncoder, TLaserSentenceEncoder
from fairseq_lxsr.modules.cpu import cpu_autocast_dtype

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
        places: Tensor | None = None,
        target_tokens: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Translate with teacher forcing.

        Args:
            src_tokens: [B, S] ids without EOS.
            target_language: [B] numbers.
            prev_output_tokens: [B, T] the target after an EOS.
            places: [P] where, in the target read as one row, logits are wanted; None for all.
            target_tokens: [C, T - 1] targets as the encoder reads them, where their embeddings are wanted too.
        Returns: logits [P, V] or [B, T, V]; embeddings `source` [B, E] and `target` [C, E] (or None).
        """
        on_cpu = not src_tokens.is_cuda
        with torch.autocast("cpu", torch.bfloat16, enabled=self.cpu_dtype is torch.bfloat16 and on_cpu):
            network, target = self.encoder.network, None
            if target_tokens is None:
                source = network(src_tokens)
            else:
                source, target = network.forward_both(src_tokens, target_tokens)
            encoder_out = {"embedding": source, "target_language": target_language}
            logits, _ = self.decoder(prev_output_tokens, encoder_out, places=places)
        return logits, {"source": source, "target": target}


def at_places(states: Tensor, places: Tensor | None) -> Tensor:
    """states [B, T, D] -> [P, D], those of `places` in the batch read as one row; all of them where it is None."""
    return states if places is None else states.flatten(0, 1)[places]
