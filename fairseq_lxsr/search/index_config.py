"""index.json: the description of an index, which lists its segments.

It is the only file of an index that is ever replaced; the segments that it lists never change.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import open_file
from fairseq_lxsr.files.records import is_count, parse_json, sealed
from fairseq_lxsr.options import INDEX_KINDS
from fairseq_lxsr.search.segment_files import check_description

INDEX_CONFIG = "index.json"
INDEX_FORMAT = 1
# Names of the segment folders of an index, those that a cluster wrote included, and of the file
# that lists the deleted documents.
SEGMENT_NAME = re.compile(r"segment-\d+|\d{5,}-[0-9a-f]{12}")
DELETED_NAME = re.compile(r"deleted-\d+\.npy")
# Expected types of the fields.
FIELD_TYPES: dict[str, type] = {
    "kind": str,
    "model": str,
    "model_folder": str,
    "ids": bool,
    "plain": bool,
    "segments": list,
}


@dataclass(frozen=True)
class IndexSettings:
    """Index settings, and the model that computes the embeddings.

    Attributes:
        model: fingerprint of the model that computes the embeddings.
        kind: index kind; see `vectors.build_index`.
        model_folder: path of the model; empty if unknown.
        plain: whether each document is a single vector, and words are not stored.
    """

    model: str
    kind: str = "flat"
    model_folder: str = ""
    plain: bool = False


def new_config(
    settings: IndexSettings,
    segments: list[dict[str, Any]],
    width: int,
    num_lines: int,
    has_ids: bool = False,
) -> dict[str, Any]:
    """Return the description of a new index.

    Args:
        settings: settings of the index.
        segments: entries of the segments, see `SegmentWriter.finish`.
        width: width of the vectors.
        num_lines: number of lines of the corpus, empty lines included.
        has_ids: whether the user has assigned ids.
    """
    return {
        "format_version": INDEX_FORMAT,
        **asdict(settings),
        "sentences": sum(segment["documents"] for segment in segments),
        "lines": num_lines,
        "width": width,
        "ids": has_ids,
        "segments": segments,
        # Number of the next segment or list of deleted documents.
        "next": 1,
        "deleted": None,
    }


def config_text(config: dict[str, Any]) -> str:
    """Return the content of index.json."""
    return f"{json.dumps(sealed(config), indent=2)}\n"


def read_config(path: Path) -> dict[str, Any]:
    """Read and check the description of an index folder, index.json.

    Raises:
        InputError: if the folder is not an index, or has an unsupported format.
    """
    if not path.is_dir():
        raise InputError(f"{path}: not an index, no such folder; build one with `lxsr index`")
    if not (path / INDEX_CONFIG).is_file():
        raise InputError(f"{path}: not an index, no {INDEX_CONFIG}; build one with `lxsr index`")
    try:
        with open_file(path / INDEX_CONFIG) as stream:
            config = parse_json(stream.read().decode("utf-8"))
        version = config["format_version"]
        if version == INDEX_FORMAT:
            _check_types(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not an index ({error!r:.120}); build one with `lxsr index`"
        ) from None
    if version != INDEX_FORMAT:
        raise InputError(
            f"{path}: index of format {version!r:.40}; expected format {INDEX_FORMAT}: build the "
            "index again"
        )
    return config


def _check_types(config: dict[str, Any]) -> None:
    """Raise `TypeError` for a field with an invalid value, or `KeyError` if one is missing."""
    for name, expected in FIELD_TYPES.items():
        # Not isinstance, because True is an int.
        if type(config[name]) is not expected:
            raise TypeError(f"invalid {name}: {config[name]!r:.40}")
    for name in ("next", "sentences", "width", "lines"):
        if not is_count(config[name]):
            raise TypeError(f"invalid {name}: {config[name]!r:.40}")
    if config["kind"] not in INDEX_KINDS:
        raise TypeError(f"invalid kind: {config['kind']!r:.40}")
    deleted = config["deleted"]
    if deleted is not None and not DELETED_NAME.fullmatch(deleted["file"]):
        raise TypeError(f"invalid deleted: {deleted!r:.40}")
    for segment in config["segments"]:
        check_description(segment)
        if not SEGMENT_NAME.fullmatch(segment["folder"]):
            raise TypeError(f"invalid folder: {segment['folder']!r:.40}")
