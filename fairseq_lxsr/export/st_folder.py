"""A model folder as sentence-transformers reads it: a BERT of the same weights, a fast tokenizer, mean pooling.

BERT's layers are ours under other names (post-LayerNorm, learned positions); token types are unused and zero. The
tokenizer does what SentencePiece does, and is compared with it on export.
"""

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_folder
from fairseq_lxsr.modules import TransformerSentenceEncoder
from fairseq_lxsr.text import BLANKS, MASK, PAD, UNK, Tokenizer

MARKER = "modules.json"  # every folder of sentence-transformers has it
TOLERANCE = 1e-4
LAYER_NORM_EPS = 1e-5  # torch's own
LAYER_NAMES = {  # BERT's and ours
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
# what the two tokenizers are compared on, beside text that the user gives
SAMPLE = (
    "The quick brown fox jumps over the lazy dog.",
    "  Où   est la bibliothèque ?  Ça coûte 12,50 €… «\u00a0ici\u00a0» ",
    "Straße, \uff26\uff35\uff2c\uff2c\uff0d\uff37 ﬁne ½ №5 e\u0301te\u0301 — naïve",
    "printf('%s', a_b) ; x == y && ~/.config/file-name.txt http://a.b/c?d=e",
    "Привет, мир! 你好\uff0c世界。 こんにちは 안녕하세요 مرحبا",
    "aaaaaaaa bbbb abababab 1234567890 1,000,000.00",
)


def export_sentence_transformers(encoder: SentenceEncoder, output: str | Path, sample: Sequence[str] = ()) -> float:
    """Write the folder; it appears under its name only when it is complete and gives the same vectors.

    Args:
        encoder: a model folder, loaded.
        sample: sentences to compare on, beside a few of every kind.
    Returns: the largest difference of a coordinate between the two, over all sentences.
    Raises: InputError where the libraries are missing, or the vectors differ.
    """
    for library in ("sentence_transformers", "google.protobuf"):
        if _missing(library):
            raise InputError(f"this export needs {library}, which is not installed: pip install 'fairseq-lxsr[st]'")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    sentences = [*SAMPLE, *sample]
    with atomic_folder(output, MARKER) as work, tempfile.TemporaryDirectory() as plain:
        symbols = extended_symbols(encoder.tokenizer)
        tokenizer = fast_tokenizer(encoder.tokenizer, symbols, encoder.model.config.max_positions)
        tokenizer.save_pretrained(plain)
        bert(encoder.model, len(symbols), encoder.tokenizer.unknown).save_pretrained(plain)
        SentenceTransformer(plain, device="cpu").save(str(work))  # adds the mean over tokens
        loaded = SentenceTransformer(str(work), device="cpu", local_files_only=True)
        found = loaded.encode(sentences, batch_size=8, show_progress_bar=False)
        differences = np.abs(found - encoder.encode(sentences, device="cpu")).max(axis=1)
        if not differences.max() <= TOLERANCE:
            worst = sentences[int(differences.argmax())]
            raise InputError(
                f"sentence-transformers gives another vector for {worst!r:.60} (by {differences.max():.2g}); this "
                "SentencePiece model cannot be exported exactly, use the model folder itself"
            )
    return float(differences.max())


def _missing(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is None
    except ModuleNotFoundError:  # of the package that it lies in
        return True


def extended_symbols(tokenizer: Tokenizer) -> list[str]:
    """The dictionary, and after it the pieces of SentencePiece that it lacks: they are read as unknown."""
    known = set(tokenizer.symbols)
    return [*tokenizer.symbols, *(piece for piece in tokenizer.all_pieces() if piece not in known)]


def bert(model: TransformerSentenceEncoder, symbols: int, unknown: int) -> Any:
    """The same network as a BertModel; rows beyond the dictionary are those of the unknown piece."""
    from transformers import BertConfig, BertModel

    config, ours = model.config, model.state_dict()
    words = ours["embed_tokens.weight"]
    weights = {
        "embeddings.word_embeddings.weight": torch.cat([words, words[unknown].expand(symbols - len(words), -1)]),
        "embeddings.position_embeddings.weight": ours["embed_positions.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(1, config.embed_dim),
        # nothing reads it, but sentence-transformers would fill it with random numbers
        "pooler.dense.weight": torch.zeros(config.embed_dim, config.embed_dim),
        "pooler.dense.bias": torch.zeros(config.embed_dim),
    }
    for kind in ("weight", "bias"):
        weights[f"embeddings.LayerNorm.{kind}"] = ours[f"layer_norm.{kind}"]
        for number in range(config.num_layers):
            name, own = f"encoder.layer.{number}", f"layers.{number}"
            parts = ours[f"{own}.self_attn.in_proj.{kind}"].chunk(3)
            for part, weight in zip(("query", "key", "value"), parts, strict=True):
                weights[f"{name}.attention.self.{part}.{kind}"] = weight
            for theirs, mine in LAYER_NAMES.items():
                weights[f"{name}.{theirs}.{kind}"] = ours[f"{own}.{mine}.{kind}"]
    network = BertModel(
        BertConfig(
            vocab_size=symbols,
            hidden_size=config.embed_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.ffn_embed_dim,
            hidden_act="silu",
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            max_position_embeddings=config.max_positions,
            type_vocab_size=1,
            layer_norm_eps=LAYER_NORM_EPS,
            pad_token_id=config.padding_idx,
        )
    )
    network.load_state_dict({name: weight.detach().float().cpu().clone() for name, weight in weights.items()})
    return network


def fast_tokenizer(tokenizer: Tokenizer, symbols: Sequence[str], max_positions: int) -> Any:
    """SentencePiece's normalisation, pieces and algorithm as a tokenizer of Hugging Face, with our ids."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as FastTokenizer
    from transformers import PreTrainedTokenizerFast

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(tokenizer.serialized_model())
    steps = [normalizers.Replace(Regex(BLANKS), " "), normalizers.Strip()]
    if tokenizer.options.lowercase:
        steps.append(normalizers.Lowercase())
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    fast = FastTokenizer(_algorithm(proto, symbols))
    fast.normalizer = normalizers.Sequence(steps)
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_max_length=max_positions,
        **{"unk_token": UNK, "pad_token": PAD, "mask_token": MASK},
        model_input_names=["input_ids", "attention_mask"],
    )


def _algorithm(proto: Any, symbols: Sequence[str]) -> Any:
    """BPE or unigram over our symbols; those that SentencePiece never gives score too low to be chosen."""
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    fallback = bool(proto.trainer_spec.byte_fallback)
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        never = min(scores.values()) - 1e4
        vocabulary = [(symbol, scores.get(symbol, never)) for symbol in symbols]
        return models.Unigram(vocabulary, unk_id=list(symbols).index(UNK), byte_fallback=fallback)
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
        raise InputError("this SentencePiece model is neither BPE nor unigram; expected one of them")
    merges = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, min(scores[left], scores[right]), left, right))
    ids = {symbol: index for index, symbol in enumerate(symbols)}
    ordered = [(left, right) for *_, left, right in sorted(merges)]
    return models.BPE(ids, ordered, unk_token=UNK, fuse_unk=True, byte_fallback=fallback)
