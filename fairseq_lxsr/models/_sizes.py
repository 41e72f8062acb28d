"""Named sizes of the lightweight model, the values of `--arch`."""

from typing import Any

# Mao et al. 2021: two layers of width 512; the other presets vary it. `static` has no layers.
BASE: dict[str, Any] = {
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 1024,
    "encoder_attention_heads": 8,
    "encoder_layers": 2,
}
LXSR = {
    "lxsr_base": BASE,
    "lxsr_static": BASE | {"encoder_layers": 0},
    "lxsr_1layer": BASE | {"encoder_layers": 1},
    "lxsr_3layers": BASE | {"encoder_layers": 3},
    "lxsr_4layers": BASE | {"encoder_layers": 4},
    "lxsr_6layers": BASE | {"encoder_layers": 6},
    "lxsr_small": BASE | {"encoder_embed_dim": 256, "encoder_ffn_embed_dim": 512, "encoder_attention_heads": 4},
    # no layers, plain embeddings and the order of words: for little text and time (docs/results.md)
    "lxsr_best": BASE | {"encoder_layers": 0, "gated": True, "order_coefficients": 1, "dropout": 0.0},
    "lxsr_tiny": BASE | {"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2},
}
