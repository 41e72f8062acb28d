"""Writes the model card (README.md): training, text licences, scores, size and speed."""

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder.hub import HUB, HUB_NAME
from fairseq_lxsr.encoder.model_folder import (
    CARD_FILE,
    CARD_FILES,
    LICENCE_FILE,
    SCORES_FILE,
)
from fairseq_lxsr.errors import printable
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import NOT_PERCENT, format_value, score_label
from fairseq_lxsr.export.card_content import CardContent, TextSources
from fairseq_lxsr.export.model_index import model_index
from fairseq_lxsr.export.st_folder import unsupported_feature
from fairseq_lxsr.files.lines import single_line
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import usable_threads
from fairseq_lxsr.text.tokenizer import SPECIAL
from fairseq_lxsr.text.words import WORD_START

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
    "## Scores\n\nNone yet: run `lxsr eval ... --output scores.jsonl`, then `lxsr export card`.\n"
)


def write_card(
    folder: str | Path,
    encoder: Any,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    name: str = "",
    library: str = OURS,
    exported: Any = None,
) -> CardContent:
    """Write scores.json and README.md into a model folder, and LICENSE.md into one for a hub.

    Args:
        folder: the model folder.
        encoder: the encoder that was evaluated.
        scores: scores of this encoder, from `lxsr eval --output`; if there are none, those in
            scores.json in the folder of the encoder.
        sources: sources of its training text; if absent, those in scores.json.
        name: model name; by default the folder name.
        library: library name for model hubs: `OURS` (fairseq-lxsr), or `ST` if
            sentence-transformers loads the folder.
        exported: the encoder in the folder if it differs from `encoder`.

    Returns:
        The scores and sources in the card.

    Raises:
        InputError: if a score belongs to another model, or scores.json is damaged.
    """
    folder = Path(folder)
    content = CardContent.of(encoder, scores, sources)
    # The folder may be `.`, so the name of the resolved path is used.
    card = _Card(
        folder, encoder, exported or encoder, content, name or folder.resolve().name, library
    )
    content.write(folder)
    card.write_licences()
    with atomic_write(folder / CARD_FILE) as stream:
        stream.write("\n".join([_front_matter(card.metadata()), *card.sections()]))
    return content


@dataclass(frozen=True)
class _Card:
    """A model card; the fields are the arguments of `write_card`."""

    folder: Path
    encoder: Any
    exported: Any
    content: CardContent
    name: str
    library: str

    @property
    def needs_flag(self) -> bool:
        """Whether sentence-transformers needs this package to load the folder."""
        return bool(unsupported_feature(self.exported))

    @property
    def is_static(self) -> bool:
        """Whether model2vec can load the folder."""
        return getattr(self.exported.size, "is_bag", False) and not self.needs_flag

    @property
    def is_evaluated(self) -> bool:
        """Whether the scores are those of the model in the folder."""
        return self.exported.size == self.encoder.size

    def write_licences(self) -> None:
        """Write the licences for a hub: hubs link to a file of this name, not to a section."""
        if self.content.sources and self.library == ST:
            with atomic_write(self.folder / LICENCE_FILE) as stream:
                stream.write(_text_section(self.content.sources))

    def metadata(self) -> dict[str, Any]:
        """Return the metadata for model hubs: languages, licence, kind of model, and scores."""
        tags = list(TAGS)
        if self.is_static:
            tags += STATIC_TAGS
        metadata: dict[str, Any] = {
            "language": self.encoder.languages,
            **self.licence(),
            "tags": tags,
            "pipeline_tag": "sentence-similarity",
            "library_name": self.library,
        }
        if self.is_evaluated and self.content.scores:
            metadata["model-index"] = model_index(self.name, self.content.scores)
        return metadata

    def licence(self) -> dict[str, str]:
        """Return the metadata of the licence."""
        if not self.content.sources:
            return {"license": "unknown"}
        link = LICENCE_FILE if self.library == ST else f"{CARD_FILE}#text"
        # Hubs have no identifier for a combination of licences.
        return {"license": "other", "license_name": "by-source", "license_link": link}

    def sections(self) -> list[str]:
        """Return the sections of the card, each as Markdown."""
        sections = [_heading(self.name, self.library, self.is_static, self.needs_flag)]
        if self.content.sources:
            sections.append(_text_section(self.content.sources))
        sections.append(_training_section(self.encoder.config["training"], self.encoder.size))
        sections.append(_scores_section(self.content.scores))
        if self.content.scores and not self.is_evaluated:
            sections.append(
                "The scores were measured with word-order coefficients, which this folder omits.\n"
            )
        sections.append(_size_section(self.folder, self.exported))
        return sections


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


def _heading(name: str, library: str, is_static: bool, needs_flag: bool) -> str:
    """Return the title, and code that loads the model with each library."""
    flag = ", trust_remote_code=True" if needs_flag else ""
    # The name as a Python string literal.
    quoted = json.dumps(single_line(name), ensure_ascii=False)
    quoted_here = quoted
    if HUB_NAME.fullmatch(name):
        quoted_here = json.dumps(f"{HUB}{name}")
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

encoder = SentenceEncoder.from_pretrained({quoted_here})
embeddings = encoder.encode(["A dog.", "Un chien."], normalize=True)  # float32 [2, width]
```
{examples}"""


def _text_section(sources: TextSources) -> str:
    rows = [source.cells for source in sources.sources]
    table = _table(("source", "licence", "attribution", "pairs"), rows)
    return f"## Text\n\n{_plain(sources.note)}\n\n{table}"


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
    if not scores:
        return NO_SCORES
    rows = []
    for score in scores:
        values = [_describe_value(metric, value) for metric, value in score.values.items()]
        rows.append((score_label(score, scores), ", ".join(values)))
    # Without the checksums of their texts, the scores of a protocol share few signatures.
    signatures: dict[str, None] = {}
    for score in scores:
        settings = {name: value for name, value in score.settings.items() if name != "text"}
        signature = replace(score, settings=settings).signature
        signatures.setdefault(f"    {single_line(signature)}")
    lines = "\n".join(signatures)
    table = _table(("", "percent"), rows)
    return (
        f"## Scores\n\n{table}\nSignatures; those with the checksums of the texts are in "
        f"{SCORES_FILE}:\n\n{lines}\n"
    )


def _describe_value(metric: str, value: float) -> str:
    unit = " (not percent)" if metric in NOT_PERCENT else ""
    return f"{metric} {format_value(metric, value)}{unit}"


def _size_section(folder: Path, encoder: Any) -> str:
    speed = sentences_per_second(encoder, encoder.tokenizer.symbols)
    text = f"{TIMED_SENTENCES:,} new sentences of {TIMED_PIECES} random word pieces"
    num_bytes = 0
    for path in folder.iterdir():
        if path.is_file() and path.name not in CARD_FILES:
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
    return "## Size and speed\n\n" + _table(("", ""), rows)


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
