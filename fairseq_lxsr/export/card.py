"""Writes the model card (README.md): training, text licences, scores, size and speed."""

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder.model_folder import CARD_FILE, LICENCE_FILE
from fairseq_lxsr.errors import InputError, printable, shown
from fairseq_lxsr.evaluation.compare import latest
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import NOT_PERCENT
from fairseq_lxsr.export.earlier_card import (
    INDEX_FIELD,
    SCORES,
    SIZE,
    TEXT,
    EarlierCard,
    dataset_type,
)
from fairseq_lxsr.export.st_folder import unsupported_feature
from fairseq_lxsr.files.lines import read_lines, single_line
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import usable_threads
from fairseq_lxsr.options import check_fields
from fairseq_lxsr.text.tokenizer import SPECIAL
from fairseq_lxsr.text.words import WORD_START

# Required content of a sources file, for error messages.
SOURCES_FORMAT = 'expected {"note": TEXT, "sources": [{"name": ...}, ...]}'


@dataclass(frozen=True)
class TextSource:
    """One source of training text.

    Attributes:
        name: short name of the source.
        about: description of the source.
        url: download URL.
        licence: name of its licence.
        attribution: attribution that the licence requires.
        pairs: number of pairs by language pair, such as `en-fr`.
    """

    name: str
    about: str
    url: str
    licence: str
    attribution: str
    pairs: Mapping[str, int]

    def __post_init__(self):
        check_fields(self)

    @property
    def cells(self) -> list[str]:
        """Cells of a row in a Markdown table."""
        counts = ", ".join(f"{pair} {count:,}" for pair, count in sorted(self.pairs.items()))
        description = f"{self.name}: {self.about}, {self.url}"
        return [description, self.licence, self.attribution, counts]


@dataclass(frozen=True)
class TextSources:
    """All sources of a training text.

    Attributes:
        note: text above the table: what was selected from the sources, and why.
        sources: the sources, in the order of the table.
    """

    note: str
    sources: tuple[TextSource, ...]

    @classmethod
    def read(cls, path: str | Path) -> "TextSources":
        """Read the sources from a JSON file.

        Args:
            path: file with `{"note": ..., "sources": [{"name": ..., ...}, ...]}`; unknown fields
                are ignored.

        Returns:
            The sources.

        Raises:
            InputError: if the file is invalid.
        """
        try:
            content = parse_json("\n".join(read_lines(path, is_sentence=False)))
        except InputError as error:
            raise InputError(f"{error}; {SOURCES_FORMAT}") from None
        except ValueError as error:
            raise InputError(f"{path}: {error!s:.100}; {SOURCES_FORMAT}") from None
        note = content.get("note")
        if not isinstance(note, str):
            raise InputError(f"{path}: invalid note {shown(note)}; {SOURCES_FORMAT}")
        rows = content.get("sources")
        if not isinstance(rows, list) or not rows:
            raise InputError(f"{path}: invalid sources {shown(rows)}; {SOURCES_FORMAT}")
        sources = []
        for number, row in enumerate(rows, start=1):
            sources.append(_parse_source(row, f"{path}, source {number}"))
        return cls(" ".join(note.split()), tuple(sources))


def _parse_source(row: Any, place: str) -> TextSource:
    names = [item.name for item in fields(TextSource)]
    if not isinstance(row, dict) or not row.keys() >= set(names):
        raise InputError(
            f"{place}: {shown(row)} is invalid; expected an object with {', '.join(names)}"
        )
    try:
        return TextSource(**{name: row[name] for name in names})
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


# Library names in model hub metadata.
OURS = "fairseq-lxsr"
ST = "sentence-transformers"
TAGS = (
    "sentence-transformers",
    "sentence-similarity",
    "feature-extraction",
    "cross-lingual",
    "multilingual",
)
STATIC_TAGS = ("model2vec", "static-embeddings")
# Size of the text on which the speed is measured.
TIMED_SENTENCES = 2000
TIMED_PIECES = 20
# Maps the weight of a loss to the options that have no effect if it is 0.
OPTIONS_OF_WEIGHT = {
    "gen_weight": ("target_weights", "target_ids", "target_overlap"),
    "align_weight": ("align_similarity", "align_temperature"),
    "sim_weight": ("sim_reduction",),
}
NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
ENTITY_START = re.compile(r"&(?=#?\w+;)")
NO_SCORES = (
    f"## {SCORES}\n\nNone yet: run `lxsr eval ... --output scores.jsonl`, "
    "then `lxsr export card`.\n"
)


def write_card(
    folder: str | Path,
    encoder: Any,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    name: str = "",
    library: str = OURS,
    exported: Any = None,
    earlier: EarlierCard | None = None,
) -> None:
    """Write README.md into a model folder, and LICENSE.md into one for a hub.

    Args:
        folder: the model folder.
        encoder: the encoder that was evaluated.
        scores: scores of this encoder, from `lxsr eval --output`.
        sources: sources of its training text.
        name: model name; by default the folder name.
        library: library name for model hubs: `OURS` (fairseq-lxsr), or `ST` if
            sentence-transformers loads the folder.
        exported: the encoder in the folder if it differs from `encoder`.
        earlier: a card of `encoder`, from which missing sources and scores are copied.

    Raises:
        InputError: if a score belongs to another model.
    """
    if exported is None:
        exported = encoder
    if not name:
        # The folder may be `.`, so the name of the resolved path is used.
        name = Path(folder).resolve().name
    _check_scores(scores, encoder, folder)
    needs_flag = bool(unsupported_feature(exported))
    is_static = getattr(exported.size, "is_bag", False) and not needs_flag
    is_evaluated = exported.size == encoder.size
    training = encoder.config["training"]
    metadata = _metadata(training, sources, is_static)
    metadata["library_name"] = library
    text_section = ""
    if sources is not None:
        text_section = _text_section(sources)
    elif earlier is not None and earlier.licence:
        text_section = earlier.sections[TEXT]
        metadata |= earlier.licence
    if text_section:
        metadata["license_link"] = f"{CARD_FILE}#text"
    if text_section and library == ST:
        # Hubs accept a file with this name, but no part of a page.
        metadata["license_link"] = LICENCE_FILE
        with atomic_write(Path(folder) / LICENCE_FILE) as stream:
            stream.write(text_section)
    scores_section = _scores_section(scores)
    index = _model_index(name, scores)
    has_scores = bool(scores)
    if not scores and earlier is not None and earlier.has_scores:
        scores_section = earlier.sections[SCORES]
        index = earlier.index(name)
        has_scores = True
    if is_evaluated:
        metadata |= index
    sections = [_front_matter(metadata), _heading(name, library, is_static, needs_flag)]
    if text_section:
        sections.append(text_section)
    sections.append(_training_section(training, encoder.size))
    sections.append(scores_section)
    if has_scores and not is_evaluated:
        sections.append(
            "The scores were measured with word-order coefficients, which this folder omits.\n"
        )
    sections.append(_size_section(Path(folder), exported))
    with atomic_write(Path(folder) / CARD_FILE) as stream:
        stream.write("\n".join(sections))


def _check_scores(scores: Sequence[Score], encoder: Any, folder: str | Path) -> None:
    for score in scores:
        model = score.settings.get("model")
        if model != encoder.fingerprint:
            raise InputError(
                f"{score.protocol} {score.task}: computed with model {model}; expected the model "
                f"in {folder} ({encoder.fingerprint}): evaluate this model"
            )


def sentences_per_second(encoder: Any, symbols: Sequence[str]) -> float:
    """Measure how many sentences per second `encode` embeds on this machine, after a warm-up.

    Args:
        encoder: a `SentenceEncoder`.
        symbols: dictionary from which random text is drawn.
    """
    pieces = [symbol for symbol in symbols[len(SPECIAL) :] if symbol.strip(WORD_START)]
    drawn = np.random.default_rng(1).choice(len(pieces), (TIMED_SENTENCES, TIMED_PIECES))
    texts = []
    for row in drawn:
        text = "".join(pieces[number] for number in row)
        texts.append(text.replace(WORD_START, " "))
    counts: Counter[str] = Counter()
    encoder.encode(texts[:100], counts=counts)
    start = time.perf_counter()
    encoder.encode(texts, counts=counts)
    return TIMED_SENTENCES / (time.perf_counter() - start)


def _front_matter(metadata: Mapping[str, Any]) -> str:
    lines = ["---"]
    for key, value in metadata.items():
        # JSON is YAML, except for characters that YAML does not allow or reads as newlines.
        text = json.dumps(value, ensure_ascii=False)
        text = NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        lines.append(f"{key}: {text}")
    return "\n".join([*lines, "---", ""])


def _metadata(
    training: dict[str, Any], sources: TextSources | None, is_static: bool
) -> dict[str, Any]:
    """Return the metadata for model hubs: languages, licence and kind of model."""
    licence = {"license": "unknown"}
    if sources is not None:
        # Hubs have no identifier for a combination of licences.
        licence = {"license": "other", "license_name": "by-source"}
    tags = list(TAGS)
    if is_static:
        tags += STATIC_TAGS
    return {
        "language": _languages(training),
        **licence,
        "tags": tags,
        "pipeline_tag": "sentence-similarity",
    }


def _languages(training: dict[str, Any]) -> list[str]:
    """List the languages of the training text."""
    pairs = list(training.get("pairs") or ())
    pairs += (training.get("lang_pairs") or "").split(",")
    languages: set[str] = set()
    for pair in pairs:
        if pair:
            languages.update(pair.strip().split("-"))
    return sorted(languages)


def _model_index(name: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the scores in the format of model hubs, or {} without scores."""
    last_scores = list(latest(scores).values())
    if not last_scores:
        return {}
    results = []
    for score in last_scores:
        metrics = [{"type": metric, "value": value} for metric, value in score.values.items()]
        results.append(
            {
                "task": {"type": "sentence-similarity", "name": score.protocol},
                "dataset": {
                    "type": dataset_type(score.protocol, score.task),
                    "name": _score_label(score, last_scores),
                },
                "metrics": metrics,
            }
        )
    return {INDEX_FIELD: [{"name": name, "results": results}]}


def _heading(name: str, library: str, is_static: bool, needs_flag: bool) -> str:
    """Return the title, and code that loads the model with each library."""
    flag = ", trust_remote_code=True" if needs_flag else ""
    # The name as a Python string literal.
    quoted = json.dumps(single_line(name), ensure_ascii=False)
    examples = ""
    if library == ST:
        examples += f"""
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({quoted}{flag})
embeddings = model.encode(["A dog.", "Un chien."])
```
"""
    if library == ST and is_static:
        examples += f"""
```python
from model2vec import StaticModel

model = StaticModel.from_pretrained({quoted})
embeddings = model.encode(["A dog.", "Un chien."])
```
"""
    return f"""# {_plain(name)}

Cross-lingual sentence embeddings, trained with fairseq-lxsr {__version__}.

```python
from fairseq_lxsr import SentenceEncoder

encoder = SentenceEncoder.from_pretrained({quoted})
embeddings = encoder.encode(["A dog.", "Un chien."], normalize=True)  # float32 [2, width]
```
{examples}"""


def _text_section(sources: TextSources) -> str:
    rows = [source.cells for source in sources.sources]
    table = _table(("source", "licence", "attribution", "pairs"), rows)
    return f"## {TEXT}\n\n{_plain(sources.note)}\n\n{table}"


def _training_section(training: dict[str, Any], size: Any) -> str:
    rows: dict[str, Any] = {
        "text": _training_text(training),
        "objective": training.get("objective"),
    }
    for name, value in _effective_options(training).items():
        # An option with the value 0, False or None is disabled.
        if value:
            rows[name.replace("_", " ")] = value
    rows["layers"] = _layers(size)
    rows["updates"] = training.get("updates")
    if training.get("finetuned"):
        rows["started from"] = "another checkpoint, whose updates are not counted"
    rows["decay of the moving average of the weights"] = training.get("ema_decay")
    rows["seed"] = training.get("seed")
    rows["teacher with comparable embeddings"] = training.get("teacher")
    return "## Training\n\n" + _table(
        ("", ""), [(name, value) for name, value in rows.items() if value is not None]
    )


def _training_text(training: dict[str, Any]) -> str | None:
    """Return the language pairs of the training, with their numbers of pairs if known."""
    pairs = training.get("pairs") or {}
    counts = [f"{name}: {count:,} pairs" for name, count in pairs.items()]
    return ", ".join(counts) or training.get("lang_pairs")


def _effective_options(training: dict[str, Any]) -> dict[str, Any]:
    """Return the training options that had an effect."""
    options = dict(training.get("options") or {})
    for weight, dependent in OPTIONS_OF_WEIGHT.items():
        if options.get(weight) == 0:
            for name in dependent:
                options.pop(name, None)
    return options


def _layers(size: Any) -> str:
    if not size.num_layers:
        return "none"
    return f"{size.num_layers}, gated" if getattr(size, "gated", False) else str(size.num_layers)


def _scores_section(scores: Sequence[Score]) -> str:
    last_scores = list(latest(scores).values())
    if not last_scores:
        return NO_SCORES
    rows = []
    for score in last_scores:
        values = [_format_value(metric, value) for metric, value in score.values.items()]
        rows.append((_score_label(score, last_scores), ", ".join(values)))
    # Scores of several tasks may share a signature.
    signatures = dict.fromkeys(f"    {single_line(score.signature)}" for score in last_scores)
    lines = "\n".join(signatures)
    return f"## {SCORES}\n\n" + _table(("", "percent"), rows) + f"\nSignatures:\n\n{lines}\n"


def _format_value(metric: str, value: float) -> str:
    if metric in NOT_PERCENT:
        return f"{metric} {value:.4f} (not percent)"
    return f"{metric} {value:.1f}"


def _score_label(score: Score, scores: Sequence[Score]) -> str:
    """Return protocol, task, and the settings that distinguish scores of this task."""
    task = (score.protocol, score.task)
    all_settings = []
    for candidate in scores:
        if (candidate.protocol, candidate.task) == task:
            all_settings.append(candidate.signed_settings)
    parts = [" ".join(task)]
    for name, value in score.signed_settings.items():
        if all(settings.get(name) == value for settings in all_settings):
            continue
        parts.append(str(value) if name == "metric" else f"{name} {value}")
    return ", ".join(parts)


def _size_section(folder: Path, encoder: Any) -> str:
    speed = sentences_per_second(encoder, encoder.tokenizer.symbols)
    text = f"{TIMED_SENTENCES:,} new sentences of {TIMED_PIECES} random word pieces"
    num_bytes = 0
    for path in folder.iterdir():
        if path.is_file() and path.name != CARD_FILE:
            num_bytes += path.stat().st_size
    rows = [
        ("parameters", f"{encoder.parameters / 1e6:.1f} M"),
        ("embedding dimension", encoder.output_dim),
        ("model folder", f"{num_bytes / 1e6:.1f} MB"),
        (
            f"speed on {text}",
            f"{speed:,.0f} sentences/s ({encoder.device}, {usable_threads()} threads)",
        ),
        ("fingerprint", encoder.fingerprint),
    ]
    return f"## {SIZE}\n\n" + _table(("", ""), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = []
    for cells in (header, *rows):
        # An unescaped bar would end a cell.
        texts = [_plain(str(cell)).replace("|", "\\|") for cell in cells]
        lines.append(f"| {' | '.join(texts)} |")
    lines.insert(1, "|---" * len(header) + "|")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return text as one line, with HTML and the links and images of Markdown escaped.

    The text may come from an untrusted model or score file.
    """
    text = printable(single_line(text))
    text = ENTITY_START.sub("&amp;", text)
    return text.replace("<", "&lt;").replace("](", "]\\(")
