"""Writes a folder as hubs of models expect it, to be uploaded by their own tools; nothing is
sent.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.model_folder import CONFIG_FILE
from fairseq_lxsr.encoder.sentence_transformers_folder import MODULES_FILE
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.export import onnx
from fairseq_lxsr.export.card import ST, TextSources, write_card
from fairseq_lxsr.export.fast_tokenizer import EXPORT_SIGN
from fairseq_lxsr.export.st_folder import check_libraries, without_order, write_for_st
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require

LARGE_FILES = ("*.safetensors", "*.onnx", "tokenizer.json")  # which git keeps elsewhere


def export_hub(
    encoder: SentenceEncoder,
    output: str | Path,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    normalize: bool = False,
    drop_order: bool = False,
    with_onnx: bool = False,
) -> None:
    """Write what `export_sentence_transformers` does, a card for the hub, and on demand the graph
    for ONNX Runtime.

        export_hub(SentenceEncoder.from_pretrained("model", "cpu"), "my-model")  # then: hf upload NAME my-model

    Args:
        encoder: the encoder to export.
        output: folder to write; its name is that of the model in the card.
        scores: of this model, that `lxsr eval --output` wrote.
        sources: of its text, for the table of licences.
        normalize: scale embeddings to length one.
        drop_order: as in `export_sentence_transformers`.
        with_onnx: write onnx/model.onnx and tokenizer_config.json too, for fastembed and
            transformers.js.

    Raises:
        InputError: where a library is missing, vectors differ, or the graph is asked for of a model
            with layers.
    """
    exported = without_order(encoder) if drop_order else encoder
    check_libraries(exported)
    static = getattr(exported.size, "is_bag", False) and not exported.size.order_coefficients
    if with_onnx and not static:
        raise InputError(
            "with_onnx: the graph stands beside a model without layers and order; see lxsr export onnx"
        )
    if with_onnx:
        require("onnx", "onnx", "this export")
    with atomic_folder(output, MODULES_FILE, sign=EXPORT_SIGN) as work:
        write_for_st(exported, work, normalize)
        if with_onnx:
            onnx.write_graph(exported, work / onnx.MODEL_FILE, normalize, int8=False)
            onnx.write_tokenizer_config(
                exported, json.loads((work / onnx.TOKENIZER_FILE).read_text("utf-8")), work
            )
            config = json.loads((work / CONFIG_FILE).read_text(encoding="utf-8"))
            config = onnx.description(exported, normalize, int8=False) | config
            (work / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_card(work, encoder, scores, sources, Path(output).resolve().name, ST, exported)
        lines = (f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_FILES)
        (work / ".gitattributes").write_text("".join(lines), encoding="ascii")
