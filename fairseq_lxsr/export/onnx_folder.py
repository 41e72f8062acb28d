"""Exports the network to ONNX, from piece ids to sentence embeddings, with pooling and optional normalization.

The folder holds onnx/model.onnx, tokenizer.json for the library tokenizers (with the model's padding and truncation),
and config.json, which describes them; transformers.js reads this layout as well. Its pipeline takes the mean of an
output [B, T, D], so the graph has such an output whose mean over the pieces is the sentence embedding:

    const embed = await pipeline("feature-extraction", "/path/to/folder");
    const embeddings = await embed(["A dog.", "Un chien."], { pooling: "mean" });

A sentence without pieces, such as an empty one, has no mean: the pipeline gives NaN, `sentence_embedding` zeros.
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
import torch
from torch import Tensor

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export.fast_tokenizer import SAMPLE, extended_symbols, fast_tokenizer, require_transformer
from fairseq_lxsr.files import atomic_folder, sha256
from fairseq_lxsr.modules import TransformerSentenceEncoder
from fairseq_lxsr.modules.pooling import order_weights
from fairseq_lxsr.optional import require
from fairseq_lxsr.text import PAD, UNK

MODEL_FILE, CONFIG_FILE = "onnx/model.onnx", "config.json"
TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
INPUT, OUTPUT, PIECES_OUTPUT = "input_ids", "sentence_embedding", "last_hidden_state"
TOLERANCE = 1e-4  # largest difference of a coordinate, float32
LEAST_COSINE = 0.98  # smallest cosine of an embedding and its int8 version
LEAST_LENGTH = 1e-12  # lower bound of the length that normalization divides by
MAX_BATCH = 65_536


class _Graph(torch.nn.Module):
    """The exported graph: ids [B, T], padded at the end, to embeddings [B, D] and states [B, T, D]."""

    def __init__(self, model: TransformerSentenceEncoder, unknown: int, normalize: bool):
        super().__init__()
        self.model, self.unknown, self.normalize = model, unknown, normalize

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        config = self.model.config
        # one more column of padding, so that a batch of empty sentences has a column
        padded = torch.nn.functional.pad(input_ids, (0, 1), value=config.padding_idx)[:, : config.max_positions]
        # pieces that are not in the dictionary have ids beyond it
        known = torch.where(padded < config.vocab_size, padded, self.unknown)
        embeddings, states = self.model(known)[0]
        if config.order_coefficients:
            states = states * self._share(known.ne(config.padding_idx))
        if self.normalize:
            length = embeddings.norm(dim=1, keepdim=True).clamp_min(LEAST_LENGTH)  # [B, 1]
            embeddings, states = embeddings / length, states / length[:, None]
        return embeddings, states[:, : input_ids.shape[1]]

    def _share(self, is_token: Tensor) -> Tensor:
        """Compute the weights of states in the embedding relative to a mean: is_token [B, T] -> [B, T, D]."""
        weights = order_weights(is_token, self.model.config.order_coefficients)[1:]  # [k, B, T]
        lengths = is_token.sum(dim=1, keepdim=True)  # [B, 1]
        return 1 + torch.einsum("kbt,kd->btd", weights * lengths, self.model.order)


def export_onnx(
    encoder: SentenceEncoder,
    output: str | Path,
    normalize: bool = False,
    int8: bool = False,
    sample: Sequence[str] = (),
) -> float:
    """Write the folder; it appears under its name only when ONNX Runtime gives the same embeddings from it.

    Args:
        encoder: the encoder to export.
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
    for library in ("onnx", "onnxscript", "onnxruntime", "tokenizers", "google.protobuf"):
        require(library, "onnx", "this export")
    sentences = [*SAMPLE, *sample]
    with atomic_folder(output, MODEL_FILE) as work:
        write_graph(encoder, work / MODEL_FILE, normalize, int8)
        write_tokenizer(encoder, work)
        found = run_folder(work, sentences)
        expected = encoder.encode(sentences, device="cpu", normalize=normalize)
        agreement = _check(found, expected, sentences, int8)
        written = [MODEL_FILE, *(path.name for path in sorted(work.glob("tokenizer*")))]
        config = description(encoder, normalize, int8) | {"files": {name: sha256(work / name) for name in written}}
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return agreement


def description(encoder: SentenceEncoder, normalize: bool, int8: bool) -> dict[str, Any]:
    """Return the content of config.json without the files."""
    config = encoder.model.config
    return {
        "model_type": "bert",  # a type that transformers.js knows: one graph, ids in, states out
        "transformers.js_config": {"dtype": "fp32"},  # its name for model.onnx; its default in browsers differs
        "hidden_size": config.embed_dim,
        "input": {"name": INPUT, "type": "int64", "shape": ["sentences", "pieces"]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["sentences", encoder.embed_dim]},
        "padding": config.padding_idx,
        "max_positions": config.max_positions,
        "normalize": normalize,
        "int8": int8,
        "model": encoder.fingerprint,
    }


def write_graph(encoder: SentenceEncoder, path: Path, normalize: bool, int8: bool) -> None:
    """Write the ONNX file; the numbers of sentences and pieces are dynamic."""
    config = encoder.model.config
    example = torch.full((3, 7), encoder.tokenizer.unknown)
    example[1, 4:] = config.padding_idx
    longest = config.max_positions
    shapes = ({0: torch.export.Dim("sentences", max=MAX_BATCH), 1: torch.export.Dim("pieces", max=longest)},)
    graph = _Graph(encoder.model, encoder.tokenizer.unknown, normalize).eval()
    path.parent.mkdir(exist_ok=True)
    with _quiet():
        program = torch.onnx.export(
            graph,
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT, PIECES_OUTPUT],
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
        )
        assert program is not None
        program.save(str(path))
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with _quiet():
            quantize_dynamic(str(path), str(path), weight_type=QuantType.QInt8)


def write_tokenizer(encoder: SentenceEncoder, folder: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json for transformers.js.

    transformers.js refuses a folder without the second file, which is omitted where its pieces would differ: its
    unigram models have no byte fallback.
    """
    model = encoder.model.config
    symbols = extended_symbols(encoder.tokenizer, model.vocab_size)
    tokenizer = fast_tokenizer(encoder.tokenizer, symbols)
    tokenizer.enable_padding(pad_id=model.padding_idx, pad_token=PAD)
    tokenizer.enable_truncation(model.max_positions)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    kind = json.loads(tokenizer.to_str())["model"]
    if kind["type"] == "Unigram" and kind["byte_fallback"]:
        return
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_positions,
        "pad_token": tokenizer.id_to_token(model.padding_idx),
        "unk_token": tokenizer.id_to_token(symbols.index(UNK)),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def run_folder(folder: Path, sentences: Sequence[str]) -> np.ndarray:
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
        worst, bad = int(agreement.argmax()), not agreement.max() <= TOLERANCE
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
