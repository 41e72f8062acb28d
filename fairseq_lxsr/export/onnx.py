"""Exports the network to ONNX, from piece ids to sentence embeddings; docs/encoding.md describes
the folder.

The pipeline of transformers.js takes the mean of an output [B, T, D], so the graph has one with
that mean.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE
from fairseq_lxsr.encoder.sentence_transformers_folder import TOKENIZER_FILE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import fast_tokenizer
from fairseq_lxsr.export.onnx_static import make_mask_optional, write_bag
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require
from fairseq_lxsr.vectors.rows import unit_rows

MODEL_FILE = "onnx/model.onnx"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
INPUT, MASK_INPUT, OUTPUT, PIECES_OUTPUT = (
    "input_ids",
    "attention_mask",
    "sentence_embedding",
    "last_hidden_state",
)
# in the order of the graph: programs take the first output
GRAPH_NAMES = (INPUT, MASK_INPUT, PIECES_OUTPUT, OUTPUT)
LEAST_COSINE = 0.98  # smallest cosine of an embedding and its int8 version


def export_onnx(
    encoder: SentenceEncoder, output: str | Path, normalize: bool = False, int8: bool = False
) -> float:
    """Write the folder; it appears under its name only when ONNX Runtime gives the same embeddings
    from it.

    For programs without Python or torch, among them browsers; `export_sentence_transformers` is for
    Python.

        export_onnx(SentenceEncoder.from_pretrained("model", "cpu"), "model_onnx")

    Args:
        encoder: a transformer or an encoder without layers, with mean pooling.
        output: folder to write.
        normalize: scale embeddings to length one.
        int8: store weights of matrix products as 8-bit integers; activations are quantized at run
            time.

    Returns:
        Largest difference of a coordinate; with int8 the smallest cosine.

    Raises:
        InputError: where a library is missing, or the embeddings differ by more than rounding.
    """
    fast_tokenizer.check_exportable(encoder, "onnx")
    for library in (
        "onnx",
        "onnxruntime",
        "tokenizers",
        *(() if encoder.size.is_bag else ("onnxscript",)),
    ):
        require(library, "onnx", "this export")
    with atomic_folder(output, CONFIG_FILE, MODEL_FILE, sign=fast_tokenizer.EXPORT_SIGN) as work:
        write_graph(encoder, work / MODEL_FILE, normalize, int8)
        write_tokenizer(encoder, work)
        found = embed_by_onnx(work, fast_tokenizer.SAMPLE)
        agreement = _check(
            found, encoder.encode(fast_tokenizer.SAMPLE, device="cpu", normalize=normalize), int8
        )
        written = [MODEL_FILE, *(path.name for path in sorted(work.glob("*token*")))]
        files = {name: sha256(work / name) for name in written}
        config = (
            description(encoder, normalize, int8) | fast_tokenizer.EXPORTED_BY | {"files": files}
        )
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return agreement


def description(encoder: SentenceEncoder, normalize: bool, int8: bool) -> dict[str, Any]:
    """Return the content of config.json without the files."""
    config = encoder.size
    return {
        "model_type": "bert",  # a type that transformers.js knows: one graph, ids in, states out
        "transformers.js_config": {
            "dtype": "fp32"
        },  # its name for model.onnx; its default in browsers differs
        "hidden_size": config.embed_dim,
        "input": {"name": INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "optional_input": {"name": MASK_INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["sentences", encoder.output_dim]},
        "padding": config.padding_idx,
        "pad_token_id": config.padding_idx,
        "max_positions": config.max_positions,
        "normalize": normalize,
        "int8": int8,
        "model": encoder.fingerprint,
    }


def write_graph(encoder: SentenceEncoder, path: Path, normalize: bool, int8: bool) -> None:
    """Write the ONNX file; the numbers of sentences and pieces are dynamic, and the mask is
    optional.
    """
    path.parent.mkdir(exist_ok=True)
    with _quiet():
        if encoder.size.is_bag:
            write_bag(encoder, path, GRAPH_NAMES, normalize)
        else:
            from fairseq_lxsr.export.onnx_network import write_network

            write_network(encoder, path, GRAPH_NAMES, normalize)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(str(path), str(path), weight_type=QuantType.QInt8)
        make_mask_optional(path, GRAPH_NAMES)


def write_tokenizer(encoder: SentenceEncoder, folder: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json, without which transformers.js refuses a
    folder.
    """
    model = encoder.size
    symbols = fast_tokenizer.extended_symbols(encoder.tokenizer, model.vocab_size)
    tokenizer = fast_tokenizer.tokenizer_json(
        encoder.tokenizer, symbols, model.max_positions, model.padding_idx
    )
    content = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_FILE).write_text(content, encoding="utf-8")
    write_tokenizer_config(encoder, tokenizer, folder)


def write_tokenizer_config(
    encoder: SentenceEncoder, tokenizer: dict[str, Any], folder: Path
) -> None:
    """Write tokenizer_config.json beside a tokenizer.json with this content, where transformers.js
    reads it rightly.
    """
    model, kind = encoder.size, tokenizer["model"]
    if kind["type"] == "Unigram" and kind["byte_fallback"]:
        return  # its unigram models have no byte fallback, so its pieces would differ
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_positions,
        "pad_token": _name(kind, model.padding_idx),
        "unk_token": _name(kind, encoder.tokenizer.unknown),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )
    # fastembed asks for the file; a token in it would no longer be text where a sentence has it
    (folder / "special_tokens_map.json").write_text("{}\n", encoding="utf-8")


def _name(model: dict[str, Any], number: int) -> str:
    """Return the name of an id in tokenizer.json, which may have a blank before that of the
    dictionary.
    """
    return model["vocab"][number][0] if model["type"] == "Unigram" else list(model["vocab"])[number]


def embed_by_onnx(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Embed sentences with an exported folder by ONNX Runtime, as a user of the folder would."""
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    session = onnxruntime.InferenceSession(
        str(folder / MODEL_FILE), providers=["CPUExecutionProvider"]
    )
    ids = np.array(
        [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))], dtype=np.int64
    )
    return session.run([OUTPUT], {INPUT: ids})[0]


def _check(found: np.ndarray, expected: np.ndarray, int8: bool) -> float:
    if int8:
        agreement = (unit_rows(found) * unit_rows(expected)).sum(axis=1)
        # of sentences that are empty in both
        agreement[~(found.any(axis=1) | expected.any(axis=1))] = 1
        worst, what, form = int(agreement.argmin()), "cosine", "to int8"
    else:
        agreement = np.abs(found - expected).max(axis=1)
        worst, what, form = int(agreement.argmax()), "difference", "exactly"
    value = float(agreement[worst])
    if not (value >= LEAST_COSINE if int8 else value <= fast_tokenizer.LARGEST_DIFFERENCE):
        raise InputError(
            f"ONNX Runtime gives another embedding for {fast_tokenizer.SAMPLE[worst]!r:.60} ({what} {value:.3g}); "
            f"this model cannot be exported {form}"
        )
    return value


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """Silence the exporters, which log every step; errors are still raised."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
