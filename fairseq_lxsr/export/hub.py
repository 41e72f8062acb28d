"""Writes a folder for a model hub, and uploads it."""

import json
from collections.abc import Sequence
from pathlib import Path

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.exported_pieces import extended_symbols
from fairseq_lxsr.encoder.hub import HUB_NAME, MALFORMED_ERRORS, guard_client
from fairseq_lxsr.encoder.model_folder import CARD_FILE, CONFIG_FILE
from fairseq_lxsr.encoder.st_checksums import MODULES_FILE, add_checksums
from fairseq_lxsr.errors import InputError, first_line, say, shown
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.export import onnx
from fairseq_lxsr.export.card import ST, write_card
from fairseq_lxsr.export.card_content import CardContent, TextSources
from fairseq_lxsr.export.fast_tokenizer import EXPORT_SIGN, with_spellings
from fairseq_lxsr.export.st_folder import check_dtype, check_libraries, without_order, write_for_st
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import require

# Files to store with Git LFS.
LARGE_FILES = ("*.safetensors", "*.onnx", "*.model", "tokenizer.json")
# Files that belong to a model; other files in a repository are kept, such as pictures.
MODEL_PATTERNS = ["*.safetensors", "*.json", "*.model", "*.onnx", "*dict.txt"]


def export_hub(
    encoder: SentenceEncoder,
    output: str | Path,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    normalize: bool = False,
    drop_order: bool = False,
    with_onnx: bool = False,
    dtype: str = "float32",
    name: str | None = None,
) -> None:
    """Write a folder for sentence-transformers with a model card, to upload with `push_to_hub`.

        encoder = SentenceEncoder.from_pretrained("model", "cpu")
        export_hub(encoder, "my-model", name="ORG/NAME")
        push_to_hub("my-model", "ORG/NAME")

    Args:
        encoder: the encoder to export.
        output: output folder.
        scores: scores of this model, from `lxsr eval --output`; if there are none, those in
            scores.json in its folder.
        sources: sources of its training text, for the table of licences; if absent, those in
            scores.json in its folder.
        normalize: scale embeddings to unit length.
        drop_order: omit the word-order coefficients; see `export_sentence_transformers`.
        with_onnx: also write onnx/model.onnx and tokenizer_config.json, for fastembed and
            transformers.js. With `dtype` int8, its weights are bytes as well.
        dtype: dtype of the stored weights; see `export_sentence_transformers`.
        name: name of the model in its card; None for the name of the output folder.

    Raises:
        InputError: if a library is missing, if the embeddings differ, or if `with_onnx` is set for
            a model with layers or word order.
    """
    exported = without_order(encoder) if drop_order else encoder
    check_libraries(exported)
    check_dtype(exported, dtype)
    if with_onnx:
        _check_onnx(exported)
    with atomic_folder(output, MODULES_FILE, sign=EXPORT_SIGN) as work:
        write_for_st(exported, work, normalize, dtype=dtype, javascript=with_onnx)
        if with_onnx:
            _add_onnx(exported, work, normalize, dtype == "int8")
        card_name = name or Path(output).resolve().name
        content = write_card(work, encoder, scores, sources, card_name, ST, exported)
        add_checksums(work)
        attributes = [f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_FILES]
        (work / ".gitattributes").write_text("".join(attributes), encoding="ascii")
    _warn_of_missing_parts(Path(output), content)


def check_push(name: str) -> None:
    """Check what can be checked before a model is written and uploaded.

    Args:
        name: name of the model on the hub.

    Raises:
        InputError: if `name` is invalid, or huggingface_hub or a token is missing.
    """
    match = HUB_NAME.fullmatch(name)
    if match is None or match["revision"]:
        raise InputError(f"{shown(name)} is not the name of a model on a hub; expected ORG/NAME")
    require("huggingface_hub", "hub", f"{name}: an upload to a hub")
    from huggingface_hub import get_token

    if get_token() is None:
        raise InputError(
            f"{name}: no token for the hub; set HF_TOKEN, or run `hf auth login`, and upload again"
        )


def push_to_hub(
    folder: str | Path, name: str, private: bool = False, revision: str | None = None
) -> str:
    """Upload a folder of `export_hub` to a hub, as one commit.

    The repository is created if it does not exist. Files of an earlier model in it are deleted.
    The token comes from the environment: HF_TOKEN, or what `hf auth login` has stored.

        push_to_hub("my-model", "ORG/NAME", private=True)
        SentenceEncoder.from_pretrained("hub:ORG/NAME")

    Args:
        folder: the folder to upload.
        name: name of the model on the hub, ORG/NAME.
        private: whether a new repository is private; an existing one must be private then.
        revision: branch to upload to, created if it does not exist; None for the main branch.

    Returns:
        Address of the commit.

    Raises:
        InputError: if `name` is invalid, huggingface_hub or a token is missing, the repository is
            public although `private` is set, or the upload fails.
    """
    check_push(name)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, XetDownloadError

    guard_client()
    api = HfApi(library_name="fairseq-lxsr", library_version=__version__)
    try:
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise InputError(
                f"{name}: this repository exists and is public; make it private on "
                f"{api.endpoint} first, or upload without private"
            )
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=f"Upload a model of fairseq-lxsr {__version__}",
            # A module of an earlier model would be read in place of the new model.
            delete_patterns=MODEL_PATTERNS,
        )
    except InputError:
        # It is a ValueError too, and already says what to do.
        raise
    except (HTTPError, XetDownloadError, ConnectionError, *MALFORMED_ERRORS) as error:
        raise InputError(
            f"{name}: the upload of {folder} to {api.endpoint} failed ({first_line(error):.150}); "
            "check the name, the token and the connection, and upload the folder again"
        ) from None
    return commit.commit_url


def _warn_of_missing_parts(output: Path, content: CardContent) -> None:
    """Print which parts are missing in the new card, and how to add them."""
    missing = []
    if content.sources is None:
        missing.append("licence and sources of the text (--sources FILE.json)")
    if not content.scores:
        missing.append("scores (--scores FILE.jsonl)")
    if missing:
        say(f"{output / CARD_FILE}: without {' and '.join(missing)}: add them before you share")


def _check_onnx(encoder: SentenceEncoder) -> None:
    size = encoder.size
    if not getattr(size, "is_bag", False) or size.order_coefficients:
        raise InputError(
            "with_onnx does not support a model with layers or word order; use `lxsr export onnx`"
        )
    require("onnx", "onnx", "this export")


def _add_onnx(encoder: SentenceEncoder, folder: Path, normalize: bool, int8: bool) -> None:
    """Add the ONNX graph to a sentence-transformers folder; both use the same tokenizer.json."""
    symbols = extended_symbols(encoder.tokenizer, encoder.size.vocab_size)
    symbols = with_spellings(encoder.tokenizer, symbols)
    onnx.write_graph(encoder, symbols, folder / onnx.MODEL_FILE, normalize, int8)
    tokenizer = json.loads((folder / onnx.TOKENIZER_FILE).read_text("utf-8"))
    onnx.write_tokenizer_config(encoder, tokenizer, folder)
    path = folder / CONFIG_FILE
    # Values that were written for model2vec take precedence.
    config = onnx.description(encoder, normalize, int8)
    config |= json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
