"""Writes a folder that can be uploaded to a model hub; nothing is uploaded."""

import json
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import CARD_FILE, CONFIG_FILE
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, add_checksums
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.export import onnx
from fairseq_lxsr.export.card import ST, TextSources, write_card
from fairseq_lxsr.export.earlier_card import EarlierCard
from fairseq_lxsr.export.fast_tokenizer import EXPORT_SIGN
from fairseq_lxsr.export.st_folder import check_dtype, check_libraries, without_order, write_for_st
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require

# Files to store with Git LFS.
LARGE_FILES = ("*.safetensors", "*.onnx", "tokenizer.json")


def export_hub(
    encoder: SentenceEncoder,
    output: str | Path,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    normalize: bool = False,
    drop_order: bool = False,
    with_onnx: bool = False,
    dtype: str = "float32",
) -> None:
    """Write a folder for sentence-transformers with a model card, to upload with the hub's tool.

        export_hub(SentenceEncoder.from_pretrained("model", "cpu"), "my-model")
        # then: hf upload NAME my-model

    Args:
        encoder: the encoder to export.
        output: output folder; its name is the model name in the card.
        scores: scores of this model, from `lxsr eval --output`; if there are none, those in the
            card of its folder.
        sources: sources of its training text, for the table of licences; if absent, those in the
            card of its folder.
        normalize: scale embeddings to unit length.
        drop_order: omit the word-order coefficients; see `export_sentence_transformers`.
        with_onnx: also write onnx/model.onnx and tokenizer_config.json, for fastembed and
            transformers.js.
        dtype: dtype of the stored weights; see `export_sentence_transformers`.

    Raises:
        InputError: if a library is missing, if the embeddings differ, or if `with_onnx` is set for
            a model with layers or word order.
    """
    exported = without_order(encoder) if drop_order else encoder
    check_libraries(exported)
    check_dtype(exported, dtype)
    if with_onnx:
        _check_onnx(exported)
    earlier = _card_of(encoder)
    with atomic_folder(output, MODULES_FILE, sign=EXPORT_SIGN) as work:
        write_for_st(exported, work, normalize, dtype=dtype)
        if with_onnx:
            _add_onnx(exported, work, normalize)
        name = Path(output).resolve().name
        write_card(work, encoder, scores, sources, name, ST, exported, earlier)
        add_checksums(work)
        attributes = [f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_FILES]
        (work / ".gitattributes").write_text("".join(attributes), encoding="ascii")
    _warn_of_missing_parts(encoder, Path(output), scores, sources, earlier)


def _card_of(encoder: SentenceEncoder) -> EarlierCard | None:
    """Return the card in the folder of an encoder, or None if it describes another model."""
    if encoder.folder is None:
        return None
    card = EarlierCard.read(encoder.folder / CARD_FILE)
    return card if card.fingerprint == encoder.fingerprint else None


def _warn_of_missing_parts(
    encoder: SentenceEncoder,
    output: Path,
    scores: Sequence[Score],
    sources: TextSources | None,
    earlier: EarlierCard | None,
) -> None:
    """Print which parts are missing in the new card, and how to add them."""
    missing = []
    if sources is None and not (earlier and earlier.licence):
        missing.append("licence and sources of the text (--sources FILE.json)")
    if not scores and not (earlier and earlier.has_scores):
        missing.append("scores (--scores FILE.jsonl)")
    if not missing:
        return
    reason = ""
    if earlier is None and encoder.folder is not None:
        reason = f"; {encoder.folder / CARD_FILE} does not describe model {encoder.fingerprint}"
    say(f"{output / CARD_FILE}: without {' and '.join(missing)}{reason}: add them before you share")


def _check_onnx(encoder: SentenceEncoder) -> None:
    size = encoder.size
    if not getattr(size, "is_bag", False) or size.order_coefficients:
        raise InputError(
            "with_onnx does not support a model with layers or word order; use `lxsr export onnx`"
        )
    require("onnx", "onnx", "this export")


def _add_onnx(encoder: SentenceEncoder, folder: Path, normalize: bool) -> None:
    """Add the ONNX graph to a sentence-transformers folder; both use the same tokenizer.json."""
    onnx.write_graph(encoder, folder / onnx.MODEL_FILE, normalize, int8=False)
    tokenizer = json.loads((folder / onnx.TOKENIZER_FILE).read_text("utf-8"))
    onnx.write_tokenizer_config(encoder, tokenizer, folder)
    path = folder / CONFIG_FILE
    # Values that were written for model2vec take precedence.
    config = onnx.description(encoder, normalize, int8=False)
    config |= json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
