"""Exports a model folder to sentence-transformers.

If sentence-transformers modules can compute the same embeddings, the folder can be loaded without
this package; docs/encoding.md lists the models.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import numpy as arrays

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import (
    PIECES_FOLDER,
    TOKENIZER,
    TOKENIZER_FILE,
    UNKNOWN_ROW,
    extended_symbols,
    hash_tokenizer,
)
from fairseq_lxsr.encoder.model_folder import (
    CONFIG_FILE,
    DEFAULT_ARCHITECTURE,
    ST_MODULE,
    WEIGHTS_FILE,
    to_int8,
    write_config,
    write_folder,
    write_texts,
)
from fairseq_lxsr.encoder.numpy_network import TABLE, Bag
from fairseq_lxsr.encoder.packed_table import PackedTable, to_bytes
from fairseq_lxsr.encoder.sentence_transformers_folder import (
    FACTORS,
    TABLE_NAMES,
    describe_static,
    require_library,
    text_files,
)
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, add_checksums, check_export
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.export.fast_tokenizer import (
    EXPORT_SIGN,
    EXPORTED_BY,
    LARGEST_DIFFERENCE,
    SAMPLE,
    fast_tokenizer,
    rows_of_symbols,
    tokenizer_json,
    with_spellings,
)
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.options import STATIC_TYPES
from fairseq_lxsr.text.sentencepiece_model import read_sentencepiece
from fairseq_lxsr.text.tokenizer import MASK, PAD, UNK

if TYPE_CHECKING:
    from fairseq_lxsr.modules import TransformerSentenceEncoder

OUR_MODULE = "fairseq_lxsr.export.st_module.SentenceModule"
# Import paths that every version of sentence-transformers accepts.
STATIC = "sentence_transformers.models.StaticEmbedding"
NORMALIZE = "sentence_transformers.models.Normalize"
MODEL2VEC = {
    "model_type": "model2vec",
    "architectures": ["StaticModel"],
}
# Maximum number of word pieces per text in model2vec, as in its own models.
MODEL2VEC_LENGTH = 1_000_000
# Private-use characters, which do not occur in ordinary text.
PRIVATE_CHARACTERS = range(0xE000, 0xF900)
# Content of config_sentence_transformers.json; other settings keep their defaults.
SETTINGS = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"}
# Maps the names of a layer's submodules in BERT to their names in the network of this package.
LAYER_NAMES = {
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
    dtype: str = "float32",
) -> float | None:
    """Write a folder for sentence-transformers, after checking that the embeddings match.

        export_sentence_transformers(SentenceEncoder.from_pretrained("model", "cpu"), "model_st")
        SentenceTransformer("model_st").encode(["A dog."])

    Args:
        encoder: the encoder to export.
        output: output folder, written atomically.
        sample: sentences for the comparison, in addition to built-in sentences.
        normalize: scale embeddings to unit length.
        drop_order: omit the word-order coefficients, so that the folder of a model without
            layers loads in sentence-transformers and model2vec without this package. The result
            is worse at distinguishing sentences that differ only in word order.
        dtype: type of the stored weights, one of `options.STATIC_TYPES`; types other than
            float32 require a model without layers and word order. With int8, the folder also
            contains a float32 factor for each row of the table.

    Returns:
        The largest difference between a coordinate of an original embedding and of the exported
        one, including the rounding to `dtype`; None if a model without layers could not be
        compared, because sentence-transformers is missing.

    Raises:
        InputError: if a library is missing, if the embeddings differ, or if `drop_order` or
            `dtype` is set for a model that does not support it.
    """
    if drop_order:
        encoder = without_order(encoder)
    check_libraries(encoder)
    check_dtype(encoder, dtype)
    with atomic_folder(output, MODULES_FILE, sign=EXPORT_SIGN) as work:
        difference = write_for_st(encoder, work, normalize, sample, dtype)
        add_checksums(work)
    return difference


def check_libraries(encoder: SentenceEncoder) -> None:
    """Check that the required libraries are installed; a model without layers needs none."""
    if not getattr(encoder.size, "is_bag", False):
        require_library("this export")


def check_dtype(encoder: SentenceEncoder, dtype: str) -> None:
    """Check that a model can be exported in a type of weights.

    Raises:
        InputError: if the type is unknown, or the model can only be exported in float32.
    """
    if dtype not in STATIC_TYPES:
        raise InputError(f"dtype is {shown(dtype)}; expected one of {', '.join(STATIC_TYPES)}")
    feature = unsupported_feature(encoder)
    if not feature and not getattr(encoder.size, "is_bag", False):
        feature = "its layers"
    if dtype != "float32" and feature:
        raise InputError(
            f"{encoder.folder or 'model'}: dtype {dtype} is not supported because of {feature}; "
            "expected float32"
        )


def write_for_st(
    encoder: SentenceEncoder,
    work: Path,
    normalize: bool = False,
    sample: Sequence[str] = (),
    dtype: str = "float32",
    javascript: bool = False,
) -> float | None:
    """Write the files into an existing folder and compare the embeddings.

    See `export_sentence_transformers` for the arguments and the result. With `javascript`,
    transformers.js can use the tokenizer of a model without layers, too.
    """
    original = encoder
    if dtype != "float32":
        encoder = _rounded(encoder, dtype)
    needs_package = bool(unsupported_feature(encoder))
    is_bag = getattr(encoder.size, "is_bag", False)
    if is_bag and needs_package:
        write_module(encoder, work, normalize)
    elif is_bag:
        write_static(encoder, work, normalize, dtype, javascript)
    else:
        _save_with_layers(encoder, work, normalize, needs_package)
    # A later export replaces only a folder that records its exporter. sentence-transformers drops
    # this record if it saves over the folder, for example after training.
    modules = json.loads((work / MODULES_FILE).read_text(encoding="utf-8"))
    _write_json(work / MODULES_FILE, [module | EXPORTED_BY for module in modules])
    if is_missing("sentence_transformers"):
        return None
    sentences = [*SAMPLE, *sample]
    if not needs_package and not is_bag:
        # Sentences without a known word are not compared: BERT embeds their unknown pieces, but
        # this package returns zeros.
        _, lengths = encoder.tokenizer.encode_known(sentences)
        sentences = list(compress(sentences, lengths))
    difference = _compare(encoder, work, sentences, normalize)
    if encoder is original:
        return difference
    rounded = encoder.encode(sentences, normalize=normalize)
    return float(np.abs(rounded - original.encode(sentences, normalize=normalize)).max())


def _save_with_layers(
    encoder: SentenceEncoder, folder: Path, normalize: bool, needs_package: bool
) -> None:
    _silence_transformers()
    model = as_module(encoder) if needs_package else as_bert(encoder)
    if normalize:
        from sentence_transformers.sentence_transformer.modules import Normalize

        model.append(Normalize())
    model.save(str(folder))


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def without_order(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return an encoder with the same embedding table and plain mean pooling.

    Args:
        encoder: an encoder without layers.

    Raises:
        InputError: if the encoder has layers.
    """
    size = encoder.size
    if not getattr(size, "is_bag", False):
        raise InputError("drop_order does not support layers; use a model without layers")
    table = encoder.packed_table or encoder.weights[TABLE]
    bag = Bag(replace(size, order_coefficients=0), {TABLE: table})
    sizes = encoder.config["encoder"] | {"order_coefficients": 0}
    config = encoder.config | {"encoder": sizes}
    return SentenceEncoder(bag, encoder.tokenizer, config, folder=encoder.folder)


def _rounded(encoder: SentenceEncoder, dtype: str) -> SentenceEncoder:
    """Return an encoder whose table is rounded to the values that a folder of this type stores."""
    table: np.ndarray | PackedTable
    if dtype == "int8":
        # A table that is already packed, also in 4 bits, is stored in 8 bits without rounding.
        table = encoder.packed_table or PackedTable(*to_int8(encoder.weights[TABLE]))
    else:
        root = np.float32(encoder.size.embed_dim**0.5)
        table = (encoder.weights[TABLE] * root).astype(dtype).astype(np.float32) / root
    bag = Bag(encoder.size, {TABLE: table})
    return SentenceEncoder(bag, encoder.tokenizer, encoder.config, folder=encoder.folder)


def _compare(
    encoder: SentenceEncoder, folder: Path, sentences: Sequence[str], normalize: bool
) -> float:
    """Return the largest coordinate difference between the embeddings of both libraries."""
    _silence_transformers()
    model = load_folder(folder)
    embeddings = model.encode(sentences, batch_size=8, show_progress_bar=False)
    # Without a counter, `encode` would log how many of these sentences were truncated.
    counts: Counter[str] = Counter()
    expected = encoder.encode(sentences, device="cpu", normalize=normalize, counts=counts)
    differences = np.abs(embeddings - expected).max(axis=1)
    largest = float(differences.max())
    # The comparison is negated, so that NaN is rejected as well.
    if not largest <= LARGEST_DIFFERENCE:
        sentence = sentences[int(differences.argmax())]
        raise InputError(
            "sentence-transformers computes a different embedding for "
            f"{sentence!r:.60} (difference {largest:.2g}); this "
            "SentencePiece model cannot be exported exactly: use the model folder itself"
        )
    return largest


def _silence_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_folder(folder: Path) -> Any:
    """Load a folder as a `SentenceTransformer` on the CPU, without running code or unpickling."""
    require_library(f"{folder}:")
    from sentence_transformers import SentenceTransformer

    from fairseq_lxsr.export.st_module import load_sentence_transformer

    check_export(folder)
    if (folder / ST_MODULE).is_dir():
        return load_sentence_transformer(folder, "cpu")
    safe_options: Any = {
        "local_files_only": True,
        "trust_remote_code": False,
        "model_kwargs": {"use_safetensors": True},
    }
    return SentenceTransformer(str(folder), device="cpu", **safe_options)


def unsupported_feature(encoder: SentenceEncoder) -> str:
    """Name a feature of the encoder that sentence-transformers does not support, if any.

    Returns:
        The feature, as the end of a message; an empty string if all are supported.
    """
    size = encoder.size
    architecture = encoder.config["architecture"]
    if architecture != DEFAULT_ARCHITECTURE:
        return f"its architecture {architecture}"
    if encoder.tokenizer.options.split_han:
        return "its segmentation of Chinese into characters"
    if size.pooling != "mean":
        return f"its pooling {size.pooling}"
    if size.gated and size.num_layers:
        return "its gated layers"
    if size.order_coefficients:
        return "its word-order coefficients"
    return ""


def write_module(encoder: SentenceEncoder, folder: Path, normalize: bool) -> None:
    """Write an encoder without layers as our `SentenceModule`; torch is not needed."""
    assert encoder.folder is not None
    description = {
        name: encoder.config[name] for name in ("architecture", "encoder", "text", "training")
    }
    texts = text_files(encoder.folder, encoder.tokenizer)
    write_folder(folder / ST_MODULE, texts, description, partial(arrays.save, encoder.weights))
    _write_settings(folder, ST_MODULE, OUR_MODULE, normalize)


def write_static(
    encoder: SentenceEncoder,
    folder: Path,
    normalize: bool,
    dtype: str = "float32",
    javascript: bool = False,
) -> None:
    """Write an encoder without layers and word order as a `StaticEmbedding`; torch is not needed.

    model2vec can load the same files. If `dtype` is not float32, the table must already be rounded;
    see `_rounded`. For transformers.js, the tokenizer has more symbols.
    """
    size = encoder.size
    symbols = extended_symbols(encoder.tokenizer, size.vocab_size)
    if javascript:
        symbols = with_spellings(encoder.tokenizer, symbols)
    unknown = ""
    file = read_sentencepiece(encoder.tokenizer.serialized_model())
    if not file.byte_fallback:
        # model2vec excludes unknown pieces from the mean, so they are mapped to a new symbol.
        unknown = _unused_character(symbols)
        symbols.append(unknown)
    rows = rows_of_symbols(encoder.tokenizer, symbols, size.vocab_size)
    weights = {}
    for name, values in _static_weights(encoder, dtype).items():
        weights[name] = values[rows]
    (folder / WEIGHTS_FILE).write_bytes(arrays.save(weights, {"format": "pt"}))
    tokenizer = tokenizer_json(
        encoder.tokenizer, symbols, None, unknown=unknown, javascript=javascript
    )
    content = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_FILE).write_text(content, encoding="utf-8")
    description = describe_static(size.vocab_size, size.embed_dim, encoder.tokenizer.options)
    description[UNKNOWN_ROW] = len(symbols) - 1 if unknown else encoder.tokenizer.unknown
    description[TOKENIZER] = hash_tokenizer(tokenizer)
    pieces = folder / PIECES_FOLDER
    pieces.mkdir()
    checksums = write_texts(pieces, text_files(encoder.folder, encoder.tokenizer))
    write_config(pieces, description, checksums)
    settings = {
        "hidden_dim": size.embed_dim,
        "seq_length": MODEL2VEC_LENGTH,
        "max_length": MODEL2VEC_LENGTH,
        "normalize": normalize,
    }
    types = {"embedding_dtype": dtype}
    _write_json(folder / CONFIG_FILE, MODEL2VEC | types | settings | EXPORTED_BY)
    _write_settings(folder, "", STATIC, normalize)


def _static_weights(encoder: SentenceEncoder, dtype: str) -> dict[str, np.ndarray]:
    """Return the table [V, D] and, for types other than float32, its row factors [V]."""
    # The network scales embeddings by the square root of their dimension.
    root = np.float32(encoder.size.embed_dim**0.5)
    if dtype == "int8":
        packed = encoder.packed_table
        assert packed is not None
        return {TABLE_NAMES[0]: to_bytes(packed.codes), FACTORS: packed.scales * root}
    rows = encoder.weights[TABLE] * root
    if dtype == "float32":
        return {TABLE_NAMES[0]: rows}
    # With factors, sentence-transformers computes in float32.
    return {TABLE_NAMES[0]: rows.astype(dtype), FACTORS: np.ones(len(rows), np.float32)}


def _unused_character(symbols: Sequence[str]) -> str:
    """Return a character that is not a symbol of the dictionary."""
    for code in PRIVATE_CHARACTERS:
        if chr(code) not in symbols:
            return chr(code)
    raise InputError(
        "the dictionary contains every private-use character; at least one must be unused"
    )


def _write_settings(folder: Path, path: str, kind: str, normalize: bool) -> None:
    """Write the sentence-transformers settings and the list of modules."""
    _write_json(folder / "config_sentence_transformers.json", SETTINGS)
    modules = [{"idx": 0, "name": "0", "path": path, "type": kind}]
    if normalize:
        modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": NORMALIZE})
    _write_json(folder / MODULES_FILE, modules)


def as_module(encoder: SentenceEncoder) -> Any:
    """Wrap any encoder in a `SentenceTransformer` with our `SentenceModule`."""
    from fairseq_lxsr.export import st_module

    return st_module.SentenceTransformer(modules=[st_module.SentenceModule(encoder)], device="cpu")


def as_bert(encoder: SentenceEncoder) -> Any:
    """Convert an encoder with post-LayerNorm layers to a `SentenceTransformer` with a BERT model.

    The model has mean pooling.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerFast

    symbols = extended_symbols(encoder.tokenizer, encoder.model.config.vocab_size)
    tokenizer = fast_tokenizer(encoder.tokenizer, symbols)
    special_symbols = {"unk_token": UNK, "pad_token": PAD}
    if MASK in symbols:
        special_symbols["mask_token"] = MASK
    special_tokens = {}
    for kind, symbol in special_symbols.items():
        special_tokens[kind] = tokenizer.id_to_token(symbols.index(symbol))
    with tempfile.TemporaryDirectory() as plain:
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_max_length=encoder.model.config.max_positions,
            **special_tokens,
            # The name of a special token in a sentence is treated as plain text.
            split_special_tokens=True,
            model_input_names=["input_ids", "attention_mask"],
        ).save_pretrained(plain)
        bert(encoder.model, len(symbols), encoder.tokenizer.unknown).save_pretrained(plain)
        # If the folder contains only a BERT model, SentenceTransformer adds mean pooling.
        return SentenceTransformer(plain, device="cpu")


def _with_unknown(rows: np.ndarray, num_symbols: int, unknown: int) -> np.ndarray:
    """Append copies of the unknown piece's row for the pieces that are not in the dictionary.

    Args:
        rows: embedding table [V, D], or a value for each of its rows [V].
        num_symbols: number of rows of the result, at least V.
        unknown: row index of the unknown piece.
    """
    copies = np.repeat(rows[unknown : unknown + 1], num_symbols - len(rows), axis=0)
    return np.concatenate([rows, copies])


def bert(model: "TransformerSentenceEncoder", num_symbols: int, unknown: int) -> Any:
    """Convert the network to a BertModel.

    Args:
        model: the network.
        num_symbols: number of symbols of the tokenizer; symbols after the dictionary get copies of
            the unknown piece's embedding.
        unknown: id of the unknown piece.
    """
    import torch
    from transformers import BertConfig, BertModel

    config = model.config
    ours = model.state_dict()
    words = ours[TABLE].detach().float().cpu()
    weights = {
        "embeddings.word_embeddings.weight": torch.from_numpy(
            _with_unknown(words.numpy(), num_symbols, unknown)
        ),
        "embeddings.position_embeddings.weight": ours["embed_positions.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(1, config.embed_dim),
        # The pooler is unused, but sentence-transformers would initialize it randomly.
        "pooler.dense.weight": torch.zeros(config.embed_dim, config.embed_dim),
        "pooler.dense.bias": torch.zeros(config.embed_dim),
    }
    for kind in ("weight", "bias"):
        weights[f"embeddings.LayerNorm.{kind}"] = ours[f"layer_norm.{kind}"]
        for number in range(config.num_layers):
            bert_layer = f"encoder.layer.{number}"
            layer = f"layers.{number}"
            parts = ours[f"{layer}.self_attn.in_proj.{kind}"].chunk(3)
            for part, weight in zip(("query", "key", "value"), parts, strict=True):
                weights[f"{bert_layer}.attention.self.{part}.{kind}"] = weight
            for bert_name, name in LAYER_NAMES.items():
                weights[f"{bert_layer}.{bert_name}.{kind}"] = ours[f"{layer}.{name}.{kind}"]
    network = BertModel(
        BertConfig(
            vocab_size=num_symbols,
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
