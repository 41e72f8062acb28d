"""Exports an encoder to an ONNX graph that maps word piece ids to sentence embeddings.

docs/encoding.md describes the folder. Programs such as transformers.js average an output
[B, T, D], so the graph has such an output in addition to its mean, the embedding.
"""

import contextlib
import io
import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import TOKENIZER_FILE, extended_symbols
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import fast_tokenizer
from fairseq_lxsr.export.classifier import LinearClassifier
from fairseq_lxsr.export.onnx_static import make_mask_optional, write_bag
from fairseq_lxsr.files.open import read_file, sha256
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require
from fairseq_lxsr.modules.sizes import piece_limit
from fairseq_lxsr.vectors.rows import unit_rows

MODEL_FILE = "onnx/model.onnx"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
INPUT = "input_ids"
MASK_INPUT = "attention_mask"
OUTPUT = "sentence_embedding"
PIECES_OUTPUT = "last_hidden_state"
# Output names in graph order; some programs use only the first output.
GRAPH_NAMES = (INPUT, MASK_INPUT, PIECES_OUTPUT, OUTPUT)
# model_max_length for models without a limit, because some programs require the field.
NO_LIMIT = 2**31 - 1
# Smallest allowed cosine similarity between an embedding and its int8 version.
LEAST_COSINE = 0.98


def export_onnx(
    encoder: SentenceEncoder,
    output: str | Path,
    normalize: bool = False,
    int8: bool = False,
    classifier: str | Path | None = None,
) -> float:
    """Write a folder for ONNX Runtime, after checking that its embeddings match.

    Use it for programs without Python or torch, such as browsers; for Python, use
    `export_sentence_transformers`.

        export_onnx(SentenceEncoder.from_pretrained("model", "cpu"), "model_onnx")

    Args:
        encoder: a transformer, or an encoder without layers, with mean pooling.
        output: output folder, written atomically.
        normalize: scale embeddings to unit length.
        int8: store the table of a model without layers, or the weights of matrix products, as
            8-bit integers. The activations of layers are quantized at run time.
        classifier: file with a linear classifier that was trained on the embeddings, to be added
            to the graph; see `LinearClassifier.read`.

    Returns:
        The largest difference between a coordinate of an original embedding and of the exported
        one; with `int8`, the smallest cosine similarity between the two embeddings of a sentence.

    Raises:
        InputError: if a library is missing, if the classifier file is invalid, or if the embeddings
            differ by more than rounding.
    """
    fast_tokenizer.check_exportable(encoder)
    for library in ("onnx", "onnxruntime", "tokenizers"):
        require(library, "onnx", "this export")
    if not encoder.size.is_bag:
        require("onnxscript", "onnx", "this export")
    head = None
    if classifier is not None:
        head = LinearClassifier.read(classifier, encoder.output_dim)
    with atomic_folder(output, CONFIG_FILE, MODEL_FILE, sign=fast_tokenizer.EXPORT_SIGN) as work:
        symbols = extended_symbols(encoder.tokenizer, encoder.size.vocab_size)
        symbols = fast_tokenizer.with_spellings(encoder.tokenizer, symbols)
        write_graph(encoder, symbols, work / MODEL_FILE, normalize, int8, head)
        write_tokenizer(encoder, symbols, work)
        embeddings = embed_by_onnx(work, fast_tokenizer.SAMPLE)
        # Without a counter, `encode` would log how many of these sentences were truncated.
        counts: Counter[str] = Counter()
        expected = encoder.encode(
            fast_tokenizer.SAMPLE, device="cpu", normalize=normalize, counts=counts
        )
        agreement = _check_embeddings(embeddings, expected, int8)
        names = [MODEL_FILE, *(path.name for path in sorted(work.glob("*token*")))]
        config = description(encoder, normalize, int8) | fast_tokenizer.EXPORTED_BY
        if head:
            config |= head.config()
        config["files"] = {name: sha256(work / name) for name in names}
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return agreement


def description(encoder: SentenceEncoder, normalize: bool, int8: bool) -> dict[str, Any]:
    """Return the content of config.json without the file checksums.

    Args:
        encoder: the exported encoder.
        normalize: whether the graph scales embeddings to unit length.
        int8: whether the weights are 8-bit integers.
    """
    size = encoder.size
    return {
        # For transformers.js, this type means a single graph that maps ids to states.
        "model_type": "bert",
        # With fp32, transformers.js loads model.onnx; in browsers its default is another file.
        "transformers.js_config": {"dtype": "fp32"},
        "hidden_size": size.embed_dim,
        "input": {"name": INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "optional_input": {"name": MASK_INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["sentences", encoder.output_dim]},
        "padding": size.padding_idx,
        "pad_token_id": size.padding_idx,
        "max_positions": piece_limit(size),
        "normalize": normalize,
        "int8": int8,
        "model": encoder.fingerprint,
    }


def write_graph(
    encoder: SentenceEncoder,
    symbols: Sequence[str],
    path: Path,
    normalize: bool,
    int8: bool,
    classifier: LinearClassifier | None = None,
) -> None:
    """Write the ONNX file; batch size and length are dynamic, and the mask is optional.

    With `int8`, the classifier is not quantized, because it is added afterwards.

    Args:
        encoder: the encoder to export.
        symbols: symbols of tokenizer.json in the order of their ids. Larger ids are unknown pieces.
        path: output file.
        normalize: scale embeddings to unit length.
        int8: store the table, or the weights of matrix products, as 8-bit integers.
        classifier: classifier of the embeddings, or None.
    """
    from onnx import load, save

    num_rows = encoder.size.vocab_size
    rows = fast_tokenizer.rows_of_symbols(encoder.tokenizer, symbols, num_rows)
    path.parent.mkdir(exist_ok=True)
    with _silence_exporters():
        if encoder.size.is_bag:
            write_bag(encoder, rows, path, GRAPH_NAMES, normalize, int8)
        else:
            from fairseq_lxsr.export.onnx_network import write_network

            write_network(encoder, rows, path, GRAPH_NAMES, normalize)
            if int8:
                from onnxruntime.quantization import QuantType, quantize_dynamic

                quantize_dynamic(str(path), str(path), weight_type=QuantType.QInt8)
    model = load(str(path))
    make_mask_optional(model, GRAPH_NAMES)
    if classifier:
        classifier.add_to(model, OUTPUT)
    save(model, str(path))


def write_tokenizer(encoder: SentenceEncoder, symbols: Sequence[str], folder: Path) -> None:
    """Write tokenizer.json and, for transformers.js, tokenizer_config.json.

    Args:
        encoder: the exported encoder.
        symbols: symbols in the order of their ids.
        folder: folder to write to.
    """
    size = encoder.size
    tokenizer = fast_tokenizer.tokenizer_json(
        encoder.tokenizer, symbols, piece_limit(size), size.padding_idx, javascript=True
    )
    content = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_FILE).write_text(content, encoding="utf-8")
    write_tokenizer_config(encoder, tokenizer, folder)


def write_tokenizer_config(
    encoder: SentenceEncoder, tokenizer: dict[str, Any], folder: Path
) -> None:
    """Write tokenizer_config.json if transformers.js supports the tokenizer.

    transformers.js rejects a folder without this file.

    Args:
        encoder: the exported encoder.
        tokenizer: content of tokenizer.json.
        folder: folder to write to.
    """
    size = encoder.size
    model = tokenizer["model"]
    if model["type"] == "Unigram" and model["byte_fallback"]:
        # transformers.js does not support byte fallback in unigram models, so its pieces would
        # differ.
        return
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": piece_limit(size) or NO_LIMIT,
        "pad_token": _symbol(model, size.padding_idx),
        "unk_token": _symbol(model, encoder.tokenizer.unknown),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    content = json.dumps(config, indent=2) + "\n"
    (folder / TOKENIZER_CONFIG_FILE).write_text(content, encoding="utf-8")
    # fastembed requires this file. It names no special tokens, because their names in a sentence
    # are plain text.
    (folder / "special_tokens_map.json").write_text("{}\n", encoding="utf-8")


def _symbol(model: dict[str, Any], number: int) -> str:
    """Return the symbol of an id in tokenizer.json, where it may begin with a space."""
    if model["type"] == "Unigram":
        return model["vocab"][number][0]
    return list(model["vocab"])[number]


def embed_by_onnx(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Embed sentences with ONNX Runtime, as a user of the folder would.

    Args:
        folder: folder that `export_onnx` wrote.
        sentences: the sentences [N].

    Returns:
        float32 embeddings [N, D].
    """
    import onnxruntime
    from tokenizers import Tokenizer

    # The error of `Tokenizer.from_file` for a failing disk would be a plain Exception.
    tokenizer = Tokenizer.from_str(read_file(folder / TOKENIZER_FILE).decode("utf-8"))
    session = onnxruntime.InferenceSession(
        str(folder / MODEL_FILE), providers=["CPUExecutionProvider"]
    )
    encodings = tokenizer.encode_batch(list(sentences))
    ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    return session.run([OUTPUT], {INPUT: ids})[0]


def _check_embeddings(embeddings: np.ndarray, expected: np.ndarray, int8: bool) -> float:
    """Check the embeddings of the built-in sentences, and return the worst cosine or difference."""
    if int8:
        cosines = (unit_rows(embeddings) * unit_rows(expected)).sum(axis=1)
        # Both embeddings of an empty sentence are zero, which leaves their cosine undefined.
        cosines[~(embeddings.any(axis=1) | expected.any(axis=1))] = 1
        row = int(cosines.argmin())
        value = float(cosines[row])
        is_close = value >= LEAST_COSINE
        problem = f"(cosine {value:.3g}); this model cannot be exported to int8"
    else:
        differences = np.abs(embeddings - expected).max(axis=1)
        row = int(differences.argmax())
        value = float(differences[row])
        is_close = value <= fast_tokenizer.LARGEST_DIFFERENCE
        problem = f"(difference {value:.3g}); this model cannot be exported exactly"
    if not is_close:
        sentence = fast_tokenizer.SAMPLE[row]
        raise InputError(
            f"ONNX Runtime computes a different embedding for {sentence!r:.60} {problem}"
        )
    return value


@contextlib.contextmanager
def _silence_exporters() -> Iterator[Any]:
    """Suppress warnings and output of the exporters, which log every step; errors are raised."""
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
