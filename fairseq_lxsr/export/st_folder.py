"""Exports a model folder to sentence-transformers.

Where its own modules compute the same, the folder loads without this package; docs/encoding.md says
which do.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import numpy as arrays

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import (
    CONFIG_FILE,
    DEFAULT_ARCHITECTURE,
    ST_MODULE,
    WEIGHTS_FILE,
    write_folder,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    MODULES_FILE,
    TABLE_NAMES,
    TOKENIZER_FILE,
    text_files,
)
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export.fast_tokenizer import (
    EXPORT_SIGN,
    EXPORTED_BY,
    LARGEST_DIFFERENCE,
    SAMPLE,
    extended_symbols,
    fast_tokenizer,
    tokenizer_json,
)
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import is_missing, require
from fairseq_lxsr.text.sentencepiece_model import read_sentencepiece
from fairseq_lxsr.text.tokenizer import MASK, PAD, UNK

if TYPE_CHECKING:
    from fairseq_lxsr.modules import TransformerSentenceEncoder

OUR_MODULE = "fairseq_lxsr.export.st_module.SentenceModule"
STATIC, NORMALIZE = (
    "sentence_transformers.models.StaticEmbedding",
    "sentence_transformers.models.Normalize",
)  # of any version
MODEL2VEC = {
    "model_type": "model2vec",
    "architectures": ["StaticModel"],
    "embedding_dtype": "float32",
}
PRIVATE_LETTERS = range(0xE000, 0xF900)  # of which no text means anything
# all else is as by default
SETTINGS = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"}
LAYER_NAMES = {  # BERT's and ours
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}


def export_sentence_transformers(
    encoder: SentenceEncoder,
    output: str | Path,
    sample: Sequence[str] = (),
    normalize: bool = False,
    drop_order: bool = False,
) -> float | None:
    """Write the folder; it appears under its name only when it is complete and gives the same
    vectors.

        export_sentence_transformers(SentenceEncoder.from_pretrained("model", "cpu"), "model_st")
        SentenceTransformer("model_st").encode(["A dog."])

    Args:
        encoder: the encoder to export.
        output: folder to write.
        sample: sentences for the comparison, in addition to built-in ones.
        normalize: scale embeddings to length one.
        drop_order: leave out the coefficients of the order of words, so that the folder of a model
            without layers loads in sentence-transformers and model2vec without this package;
            translations that differ in the order alone are told apart less well.

    Returns:
        Largest difference of a coordinate between the two, over all sentences; None for a model
        without layers where sentence-transformers is not installed, so that nothing could be
        compared.

    Raises:
        InputError: where a library is missing, the vectors differ, or for `drop_order` with layers.
    """
    if drop_order:
        encoder = without_order(encoder)
    check_libraries(encoder)
    with atomic_folder(output, MODULES_FILE, sign=EXPORT_SIGN) as work:
        return write_for_st(encoder, work, normalize, sample)


def check_libraries(encoder: SentenceEncoder) -> None:
    """Refuse to begin where a library is missing; what has no layers is written without any."""
    if not getattr(encoder.size, "is_bag", False):
        require("sentence_transformers", "st", "this export")


def write_for_st(
    encoder: SentenceEncoder, work: Path, normalize: bool = False, sample: Sequence[str] = ()
) -> float | None:
    """Write the files into a folder, and compare the vectors, as `export_sentence_transformers`
    does.
    """
    own, is_bag = unsupported_feature(encoder), getattr(encoder.size, "is_bag", False)
    if is_bag:
        (write_module if own else write_static)(encoder, work, normalize)
    else:
        _quiet()
        model = (as_module if own else as_bert)(encoder)
        if normalize:
            from sentence_transformers.sentence_transformer.modules import Normalize

            model.append(Normalize())
        model.save(str(work))
    # says who exported it; sentence-transformers drops that where it saves over them, as after
    # training
    modules = json.loads((work / MODULES_FILE).read_text(encoding="utf-8"))
    _write_json(work / MODULES_FILE, [module | EXPORTED_BY for module in modules])
    if is_missing("sentence_transformers"):
        return None
    sentences = [*SAMPLE, *sample]
    if not own and not is_bag:  # a BERT reads the unknown pieces of a sentence without a known word
        _, lengths = encoder.tokenizer.encode_known(sentences)
        sentences = list(compress(sentences, lengths))
    return _compare(encoder, work, sentences, normalize)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def without_order(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return the encoder whose embedding is the plain mean of the rows of this one."""
    size = encoder.size
    if not getattr(size, "is_bag", False):
        raise InputError(
            "drop_order: a model with layers or of another kind; expected one without layers"
        )
    bag = Bag(replace(size, order_coefficients=0), {TABLE: encoder.weights[TABLE]})
    config = encoder.config | {"encoder": encoder.config["encoder"] | {"order_coefficients": 0}}
    return SentenceEncoder(bag, encoder.tokenizer, config, folder=encoder.folder)


def _compare(
    encoder: SentenceEncoder, folder: Path, sentences: Sequence[str], normalize: bool
) -> float:
    """Return the largest difference of a coordinate of an embedding."""
    _quiet()
    found = load_folder(folder, "cpu").encode(sentences, batch_size=8, show_progress_bar=False)
    differences = np.abs(found - encoder.encode(sentences, device="cpu", normalize=normalize)).max(
        axis=1
    )
    if not differences.max() <= LARGEST_DIFFERENCE:
        worst = sentences[int(differences.argmax())]
        raise InputError(
            f"sentence-transformers gives another vector for {worst!r:.60} (by {differences.max():.2g}); this "
            "SentencePiece model cannot be exported exactly, use the model folder itself"
        )
    return float(differences.max())


def _quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_folder(folder: str | Path, device: str | None = None) -> Any:
    """Load a folder as a `SentenceTransformer`; code in it is not run, weights are read from
    safetensors.
    """
    from sentence_transformers import SentenceTransformer

    from fairseq_lxsr.export.st_module import load_sentence_transformer

    if (Path(folder) / ST_MODULE).is_dir():
        return load_sentence_transformer(folder, device)
    safely: Any = {
        "local_files_only": True,
        "trust_remote_code": False,
        "model_kwargs": {"use_safetensors": True},
    }
    return SentenceTransformer(str(folder), device=device, **safely)


def unsupported_feature(encoder: SentenceEncoder) -> str:
    """Say what of a model no module of sentence-transformers computes; empty where they compute the
    same.
    """
    config, architecture = encoder.size, encoder.config["architecture"]
    if architecture != DEFAULT_ARCHITECTURE:
        return f"its architecture {architecture}"
    reasons = {
        "its words of one Chinese character": encoder.tokenizer.options.split_han,
        f"its pooling {config.pooling}": config.pooling != "mean",
        "its gated layers": config.gated and config.num_layers,
        "its coefficients of the order of words": config.order_coefficients,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def write_module(encoder: SentenceEncoder, folder: Path, normalize: bool) -> None:
    """Write an encoder without layers as our `SentenceModule`, by numpy."""
    assert encoder.folder is not None
    description = {
        name: encoder.config[name] for name in ("architecture", "encoder", "text", "training")
    }
    texts = text_files(encoder.folder, encoder.tokenizer)
    write_folder(folder / ST_MODULE, texts, description, partial(arrays.save, encoder.weights))
    _write_settings(folder, ST_MODULE, OUR_MODULE, normalize)


def write_static(encoder: SentenceEncoder, folder: Path, normalize: bool) -> None:
    """Write an encoder whose embedding is the mean of its rows times the root of D, by numpy.

    model2vec reads the same two files. It leaves unknown pieces out of the mean, so they have
    another symbol there.
    """
    config = encoder.size
    symbols = extended_symbols(encoder.tokenizer, config.vocab_size)
    unknown = next(letter for letter in map(chr, PRIVATE_LETTERS) if letter not in symbols)
    symbols += [unknown] * (
        not read_sentencepiece(encoder.tokenizer.serialized_model()).byte_fallback
    )
    rows = _with_unknown(encoder.weights[TABLE], len(symbols), encoder.tokenizer.unknown)
    weights = {TABLE_NAMES[0]: rows * np.float32(config.embed_dim**0.5)}
    (folder / WEIGHTS_FILE).write_bytes(arrays.save(weights, {"format": "pt"}))
    longest = config.max_positions
    tokenizer = tokenizer_json(
        encoder.tokenizer, symbols, longest, unknown=unknown if unknown in symbols else ""
    )
    (folder / TOKENIZER_FILE).write_text(
        json.dumps(tokenizer, indent=2, ensure_ascii=False), encoding="utf-8"
    )
    sizes = {
        "hidden_dim": config.embed_dim,
        "seq_length": longest,
        "max_length": longest,
        "normalize": normalize,
    }
    _write_json(folder / CONFIG_FILE, MODEL2VEC | sizes | EXPORTED_BY)
    _write_settings(folder, "", STATIC, normalize)


def _write_settings(folder: Path, path: str, kind: str, normalize: bool) -> None:
    """Write the two files that name the modules of a folder, and its similarity."""
    _write_json(folder / "config_sentence_transformers.json", SETTINGS)
    modules = [{"idx": 0, "name": "0", "path": path, "type": kind}]
    modules += [{"idx": 1, "name": "1", "path": "1_Normalize", "type": NORMALIZE}] * normalize
    _write_json(folder / MODULES_FILE, modules)


def as_module(encoder: SentenceEncoder) -> Any:
    """Make a `SentenceTransformer` of any encoder."""
    from fairseq_lxsr.export import st_module

    return st_module.SentenceTransformer(modules=[st_module.SentenceModule(encoder)], device="cpu")


def as_bert(encoder: SentenceEncoder) -> Any:
    """Make a `SentenceTransformer` of post-LayerNorm layers."""
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerFast

    symbols = extended_symbols(encoder.tokenizer, encoder.model.config.vocab_size)
    tokenizer = fast_tokenizer(encoder.tokenizer, symbols)
    special = {"unk_token": UNK, "pad_token": PAD} | (
        {"mask_token": MASK} if MASK in symbols else {}
    )
    with tempfile.TemporaryDirectory() as plain:
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_max_length=encoder.model.config.max_positions,
            **{
                kind: tokenizer.id_to_token(symbols.index(symbol))
                for kind, symbol in special.items()
            },
            split_special_tokens=True,  # text that looks like a special token stays text
            model_input_names=["input_ids", "attention_mask"],
        ).save_pretrained(plain)
        bert(encoder.model, len(symbols), encoder.tokenizer.unknown).save_pretrained(plain)
        return SentenceTransformer(plain, device="cpu")  # this adds mean pooling


def _with_unknown(rows: np.ndarray, symbols: int, unknown: int) -> np.ndarray:
    """Append copies of the unknown piece's row, for the pieces that are not in the dictionary."""
    return np.concatenate(
        [rows, np.repeat(rows[unknown : unknown + 1], symbols - len(rows), axis=0)]
    )


def bert(model: "TransformerSentenceEncoder", symbols: int, unknown: int) -> Any:
    """Convert the network to a BertModel; rows beyond the dictionary are copies of the unknown
    piece's row.
    """
    import torch
    from transformers import BertConfig, BertModel

    config, ours = model.config, model.state_dict()
    words = ours[TABLE].detach().float().cpu()
    weights = {
        "embeddings.word_embeddings.weight": torch.from_numpy(
            _with_unknown(words.numpy(), symbols, unknown)
        ),
        "embeddings.position_embeddings.weight": ours["embed_positions.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(1, config.embed_dim),
        # unused, but sentence-transformers would initialize it randomly
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
            layer_norm_eps=config.layer_norm_eps,
            pad_token_id=config.padding_idx,
        )
    )
    network.load_state_dict(
        {name: weight.detach().float().cpu().clone() for name, weight in weights.items()}
    )
    return network
