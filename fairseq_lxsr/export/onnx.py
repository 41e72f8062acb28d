"""Exports the network to ONNX, from piece ids to sentence embeddings, with pooling and optional normalization.

The folder holds onnx/model.onnx, tokenizer.json for the library tokenizers (with the model's padding and truncation),
and config.json, which describes them; transformers.js reads this layout as well. Its pipeline takes the mean of an
output [B, T, D], so the graph has such an output whose mean over the pieces is the sentence embedding:

    const embed = await pipeline("feature-extraction", "/path/to/folder");
    const embeddings = await embed(["A dog.", "Un chien."], { pooling: "mean" });

A sentence without pieces, such as an empty one, has no mean: the pipeline gives NaN, `sentence_embedding` zeros.

transformers.js has a normalization of its own, so some text has other pieces there: U+200D (in emoji and Indic words)
and U+061C become blanks, U+0344 is taken apart, and marks get their canonical order (an Arabic shadda goes after the
vowel). The library tokenizers has other pieces for a full-width or mathematical letter with a combining mark.
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
from fairseq_lxsr.encoder.folder import CONFIG_FILE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export.fast_tokenizer import (
    EXPORT_SIGN,
    EXPORTED_BY,
    LARGEST_DIFFERENCE,
    SAMPLE,
    extended_symbols,
    require_transformer,
    tokenizer_json,
)
from fairseq_lxsr.export.onnx_static import write_bag
from fairseq_lxsr.files.open import sha256
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require
from fairseq_lxsr.text.tokenizer import UNK

MODEL_FILE = "onnx/model.onnx"
TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
INPUT, OUTPUT, PIECES_OUTPUT = "input_ids", "sentence_embedding", "last_hidden_state"
LEAST_COSINE = 0.98  # smallest cosine of an embedding and its int8 version


def export_onnx(
    encoder: SentenceEncoder,
    output: str | Path,
    normalize: bool = False,
    int8: bool = False,
    sample: Sequence[str] = (),
) -> float:
    """Write the folder; it appears under its name only when ONNX Runtime gives the same embeddings from it.

    For programs without Python or torch, among them browsers; `export_sentence_transformers` is for Python.

        export_onnx(SentenceEncoder.from_pretrained("model", "cpu"), "model_onnx")

    Args:
        encoder: a transformer or an encoder without layers, with mean pooling.
        output: folder to write.
        normalize: scale embeddings to length one.
        int8: store weights of matrix products as 8-bit integers; activations are quantized at run time.
        sample: sentences for the comparison, in addition to built-in ones.

    Returns:
        Largest difference of a coordinate; with int8 the smallest cosine.

    Raises:
        InputError: where a library is missing, or the embeddings differ by more than rounding.
    """
    require_transformer(encoder, "onnx")
    for library in ("onnx", "onnxruntime", "tokenizers", *(() if encoder.size.is_bag else ("onnxscript",))):
        require(library, "onnx", "this export")
    sentences = [*SAMPLE, *sample]
    with atomic_folder(output, CONFIG_FILE, MODEL_FILE, sign=EXPORT_SIGN) as work:
        write_graph(encoder, work / MODEL_FILE, normalize, int8)
        write_tokenizer(encoder, work)
        found = embed_by_onnx(work, sentences)
        expected = encoder.encode(sentences, device="cpu", normalize=normalize)
        agreement = _check(found, expected, sentences, int8)
        written = [MODEL_FILE, *(path.name for path in sorted(work.glob("tokenizer*")))]
        files = {name: sha256(work / name) for name in written}
        config = description(encoder, normalize, int8) | EXPORTED_BY | {"files": files}
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return agreement


def description(encoder: SentenceEncoder, normalize: bool, int8: bool) -> dict[str, Any]:
    """Return the content of config.json without the files."""
    config = encoder.size
    return {
        "model_type": "bert",  # a type that transformers.js knows: one graph, ids in, states out
        "transformers.js_config": {"dtype": "fp32"},  # its name for model.onnx; its default in browsers differs
        "hidden_size": config.embed_dim,
        "input": {"name": INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["sentences", encoder.output_dim]},
        "padding": config.padding_idx,
        "max_positions": config.max_positions,
        "normalize": normalize,
        "int8": int8,
        "model": encoder.fingerprint,
    }


def write_graph(encoder: SentenceEncoder, path: Path, normalize: bool, int8: bool) -> None:
    """Write the ONNX file; the numbers of sentences and pieces are dynamic."""
    path.parent.mkdir(exist_ok=True)
    names = INPUT, OUTPUT, PIECES_OUTPUT
    with _quiet():
        if encoder.size.is_bag:
            write_bag(encoder, path, names, normalize)
        else:
            from fairseq_lxsr.export.onnx_network import write_network

            write_network(encoder, path, names, normalize)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(str(path), str(path), weight_type=QuantType.QInt8)


def write_tokenizer(encoder: SentenceEncoder, folder: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json for transformers.js.

    transformers.js refuses a folder without the second file, which is omitted where its pieces would differ: its
    unigram models have no byte fallback.
    """
    model = encoder.size
    symbols = extended_symbols(encoder.tokenizer, model.vocab_size)
    tokenizer = tokenizer_json(encoder.tokenizer, symbols, model.max_positions, model.padding_idx)
    content = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_FILE).write_text(content, encoding="utf-8")
    kind = tokenizer["model"]
    if kind["type"] == "Unigram" and kind["byte_fallback"]:
        return
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_positions,
        "pad_token": _name(kind, model.padding_idx),
        "unk_token": _name(kind, symbols.index(UNK)),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _name(model: dict[str, Any], number: int) -> str:
    """Return the name of an id in tokenizer.json, which may have a blank before that of the dictionary."""
    return model["vocab"][number][0] if model["type"] == "Unigram" else list(model["vocab"])[number]


def embed_by_onnx(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Embed sentences with an exported folder by ONNX Runtime, as a user of the folder would."""
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    session = onnxruntime.InferenceSession(str(folder / MODEL_FILE), providers=["CPUExecutionProvider"])
    ids = np.array([encoding.ids for encoding in tokenizer.encode_batch(list(sentences))], dtype=np.int64)
    return session.run([OUTPUT], {INPUT: ids})[0]


def _check(found: np.ndarray, expected: np.ndarray, sentences: Sequence[str], int8: bool) -> float:
    if int8:
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        agreement = (found * expected).sum(axis=1) / np.where(norms > 0, norms, 1)
        worst, bad = int(agreement.argmin()), not agreement.min() >= LEAST_COSINE
    else:
        agreement = np.abs(found - expected).max(axis=1)
        worst, bad = int(agreement.argmax()), not agreement.max() <= LARGEST_DIFFERENCE
    if bad:
        what = "cosine" if int8 else "difference"
        raise InputError(
            f"ONNX Runtime gives another embedding for {sentences[worst]!r:.60} ({what} "
            f"{agreement[worst]:.3g}); this model cannot be exported {'to int8' if int8 else 'exactly'}"
        )
    return float(agreement[worst])


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
