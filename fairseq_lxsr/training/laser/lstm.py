"""fairseq model `laser`: a bidirectional LSTM encoder with max pooling and an LSTM decoder."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model
from omegaconf import II
from torch import Tensor, nn

from fairseq_lxsr.modules import LaserConfig, LaserSentenceEncoder
from fairseq_lxsr.modules.dropout import Dropout
from fairseq_lxsr.modules.laser import LSTM, uniform_
from fairseq_lxsr.modules.sizes import SOME_LAYERS, WIDTH
from fairseq_lxsr.options import option
from fairseq_lxsr.training.laser.translation import (
    EncoderOut,
    SentenceDecoder,
    SentenceTranslationModel,
    TranslationEncoder,
)
from fairseq_lxsr.training.model_options import EncoderOptions, register_presets

# The encoder follows Artetxe and Schwenk 2019, and the numbers of layers follow Li and Mak 2020.
# The width of the decoder's embeddings is our choice: fairseq's examples/laser uses 320 for both
# encoder and decoder, and Li and Mak's code uses 512 (recipe laser_1_released).
LASER_1 = {
    "encoder_embed_dim": 320,
    "encoder_hidden_size": 512,
    "encoder_layers": 1,
    "decoder_embed_dim": 1024,
    "decoder_hidden_size": 2048,
    "decoder_lang_embed_dim": 32,
}
LASER_SMALL = {
    "encoder_embed_dim": 128,
    "encoder_hidden_size": 128,
    "decoder_embed_dim": 128,
    "decoder_hidden_size": 256,
}
LASER_TINY = {
    "encoder_embed_dim": 16,
    "encoder_hidden_size": 16,
    "decoder_embed_dim": 16,
    "decoder_hidden_size": 32,
}
LASER_PRESETS = {
    "laser_1": LASER_1,
    "laser_5": LASER_1 | {"encoder_layers": 5},
    "laser_6": LASER_1 | {"encoder_layers": 6},
    "laser_small": LASER_1 | LASER_SMALL,
    "laser_6_small": LASER_1 | LASER_SMALL | {"encoder_layers": 6},
    "laser_tiny": LASER_1 | LASER_TINY,
}


@dataclass
class LaserModelConfig(EncoderOptions):
    encoder_embed_dim: int = option("width of the encoder's token embeddings", 320, WIDTH)
    encoder_hidden_size: int = option("number of LSTM units in each direction", 512, WIDTH)
    encoder_layers: int = option("number of bidirectional LSTM layers", 1, SOME_LAYERS)
    decoder_embed_dim: int = option("width of the decoder's token embeddings", 1024, WIDTH)
    decoder_hidden_size: int = option("number of LSTM units in the decoder", 2048, WIDTH)
    decoder_lang_embed_dim: int = option("width of the language embeddings", 32, WIDTH)
    encoder_append_eos: bool = option(
        "add <s> before and </s> after each sentence in the encoder input", False
    )
    # The type is Any, because fairseq would treat any text as True for bool.
    encoder_prepend_bos: Any = field(default=II(".encoder_append_eos"))
    decoder_input_feeding: bool = option(
        "feed the decoder's previous output back as input at every step (slower, because the steps "
        "run one by one)",
        False,
    )


class LaserDecoder(SentenceDecoder):
    """LSTM decoder, fed with the previous piece, the sentence embedding and the target language.

    With input feeding, its last output is another input, as in Li and Mak's decoder (laser_lstm.py,
    line 286).

    Args:
        dictionary: fairseq dictionary.
        num_languages: number of target languages.
        sentence_dim: sentence embedding width E.
        cfg: model options.
    """

    def __init__(
        self, dictionary: Dictionary, num_languages: int, sentence_dim: int, cfg: LaserModelConfig
    ):
        super().__init__(dictionary)
        embed_dim = cfg.decoder_embed_dim
        hidden = cfg.decoder_hidden_size
        language_dim = cfg.decoder_lang_embed_dim
        self.embed_tokens = uniform_(nn.Embedding(len(dictionary), embed_dim, dictionary.pad()))
        nn.init.zeros_(self.embed_tokens.weight[dictionary.pad()])
        self.embed_languages = uniform_(nn.Embedding(num_languages, language_dim))
        # Maps the sentence embedding to the initial hidden and cell states.
        self.first_states = uniform_(nn.Linear(sentence_dim, 2 * hidden))
        self.input_feeding = cfg.decoder_input_feeding
        fed = hidden if self.input_feeding else 0
        self.lstm = uniform_(
            LSTM(embed_dim + sentence_dim + language_dim + fed, hidden, batch_first=True)
        )
        self.output_projection = uniform_(nn.Linear(hidden, len(dictionary)))
        self.dropout = Dropout(cfg.dropout)

    def states(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: dict | None
    ) -> Tensor:
        embedding = encoder_out["embedding"]  # [B, E]
        cached = None
        if incremental_state is not None:
            cached = self.get_incremental_state(incremental_state, "lstm")
            prev_output_tokens = prev_output_tokens[:, -1:]
        x = self.dropout(self.embed_tokens(prev_output_tokens))  # [B, T, D]
        sentence = torch.cat(
            (embedding, self.embed_languages(encoder_out["target_language"])), dim=1
        )
        x = torch.cat((x, sentence[:, None].expand(-1, x.shape[1], -1).to(x.dtype)), dim=2)
        if cached is None:
            hidden, cell = self.first_states(embedding).chunk(2, dim=1)  # [B, H]
        else:
            hidden, cell = cached["hidden"], cached["cell"]
        states = tuple(value.to(x.dtype)[None].contiguous() for value in (hidden, cell))
        if self.input_feeding:
            fed = torch.zeros_like(hidden) if cached is None else cached["output"]
            output, (hidden, cell) = self._feed(x, states, fed.to(x.dtype)[:, None])
        else:
            output, (hidden, cell) = self.lstm(x, states)
            output = self.dropout(output)
        if incremental_state is not None:
            cached = {"hidden": hidden[0], "cell": cell[0], "output": output[:, -1]}
            self.set_incremental_state(incremental_state, "lstm", cached)
        return output

    def _feed(
        self, x: Tensor, states: tuple[Tensor, Tensor], output: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM step by step, feeding back the previous output.

        Args:
            x: inputs without the fed-back outputs [B, T, I].
            states: hidden and cell states before the first step [1, B, H].
            output: output of the previous step [B, 1, H].

        Returns:
            Outputs after dropout [B, T, H], and the final states.
        """
        outputs = []
        for step in x.split(1, dim=1):
            output, states = self.lstm(torch.cat((step, output), dim=2), states)
            output = self.dropout(output)
            outputs.append(output)
        return torch.cat(outputs, dim=1), states

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        cached = self.get_incremental_state(incremental_state, "lstm")
        if cached is not None:
            reordered = {name: value.index_select(0, new_order) for name, value in cached.items()}
            self.set_incremental_state(incremental_state, "lstm", reordered)

    def max_positions(self) -> int:
        return int(1e9)


@register_model("laser", dataclass=LaserModelConfig)
class LaserModel(SentenceTranslationModel):
    """LASER (Artetxe and Schwenk 2019), or cLASER with the criterion's distance constraint."""

    @classmethod
    def build_model(cls, cfg: LaserModelConfig, task) -> "LaserModel":
        dictionary = task.source_dictionary
        config = LaserConfig(
            vocab_size=len(dictionary),
            padding_idx=dictionary.pad(),
            embed_dim=cfg.encoder_embed_dim,
            hidden_size=cfg.encoder_hidden_size,
            num_layers=cfg.encoder_layers,
            dropout=cfg.dropout,
            prepend_bos=cfg.encoder_prepend_bos,
            append_eos=cfg.encoder_append_eos,
        )
        encoder = TranslationEncoder(dictionary, LaserSentenceEncoder(config))
        decoder = LaserDecoder(dictionary, len(task.languages), config.output_dim, cfg)
        return cls(encoder, decoder, cfg.cpu_precision)


register_presets("laser", LASER_PRESETS)
