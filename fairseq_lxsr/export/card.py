"""Reads the table of the sources of a training text, for the model card: licence and attribution of
each.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr import __version__
from fairseq_lxsr.encoder.model_folder import CARD_FILE
from fairseq_lxsr.errors import InputError, shown
from fairseq_lxsr.evaluation.compare import latest
from fairseq_lxsr.evaluation.score import Score
from fairseq_lxsr.evaluation.tables import NOT_PERCENT
from fairseq_lxsr.export.st_folder import unsupported_feature
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import usable_threads
from fairseq_lxsr.options import check_fields
from fairseq_lxsr.text.tokenizer import SPECIAL
from fairseq_lxsr.text.words import WORD_START


@dataclass(frozen=True)
class TextSource:
    """A source of training text: what it is, where it comes from, whom to name, and its pairs by
    language pair.
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
        texts = f"{self.name}: {self.about}, {self.url}", self.licence, self.attribution, counts
        return [" ".join(text.split()).replace("|", "\\|") for text in texts]


@dataclass(frozen=True)
class TextSources:
    """All sources of a training text, and a note: what was taken and why."""

    note: str
    sources: tuple[TextSource, ...]

    @classmethod
    def read(cls, path: str | Path) -> "TextSources":
        """Read a JSON file `{"note": ..., "sources": [{"name": ..., ...}, ...]}`; other fields are
        ignored.
        """
        try:
            read = parse_json("\n".join(read_lines(path, is_sentence=False)))
            note, rows = read["note"], read["sources"]
            if not (isinstance(note, str) and isinstance(rows, list) and rows):
                raise TypeError("the note is not text, or the sources are not a list")
        except (ValueError, KeyError, TypeError) as error:
            reason = error if isinstance(error, InputError) else f"{path}: {error!r:.100}"
            raise InputError(f'{reason}; expected {{"note": ..., "sources": [...]}}') from None
        sources = (
            _source(row, f"{path}, source {number}") for number, row in enumerate(rows, start=1)
        )
        return cls(" ".join(note.split()), tuple(sources))


def _source(row: Any, where: str) -> TextSource:
    names = [item.name for item in fields(TextSource)]
    if not isinstance(row, dict) or not row.keys() >= set(names):
        raise InputError(f"{where}: {shown(row)}; expected an object with {', '.join(names)}")
    try:
        return TextSource(**{name: row[name] for name in names})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


# names of libraries, as hubs of models know them
OURS, ST = ("fairseq-lxsr", "sentence-transformers")
TAGS = (
    "sentence-transformers",
    "sentence-similarity",
    "feature-extraction",
    "cross-lingual",
    "multilingual",
)
STATIC_TAGS = ("model2vec", "static-embeddings")
TIMED_SENTENCES, TIMED_PIECES = 2000, 20  # size of the text on which speed is measured
# options that say nothing where the weight of their loss is 0
OF_WEIGHT = {
    "gen_weight": ("target_weights", "target_ids", "target_overlap"),
    "align_weight": ("align_similarity", "align_temperature"),
    "sim_weight": ("sim_reduction",),
}


def write_card(
    folder: str | Path,
    encoder: Any,
    scores: Sequence[Score] = (),
    sources: TextSources | None = None,
    name: str = "",
    library: str = OURS,
    exported: Any = None,
) -> None:
    """Write README.md into a model folder, with scores of this model that `lxsr eval --output`
    wrote.

    `name` is that of the model, by default of the folder; `library` the one that a hub shows:
    `OURS`, or `ST` for a folder that it loads. `exported` is the encoder of the folder where it is
    not the one of the scores.
    """
    exported = exported or encoder
    name = name or Path(folder).resolve().name  # of `.` too
    for score in scores:
        if score.settings.get("model") != encoder.fingerprint:
            raise InputError(
                f"{score.protocol} {score.task}: of model {score.settings.get('model')}, not of {folder} "
                f"({encoder.fingerprint}); evaluate this model"
            )
    training = encoder.config["training"]
    own = bool(unsupported_feature(exported))
    static = getattr(exported.size, "is_bag", False) and not own
    metadata = _metadata(training, sources, static) | {"library_name": library}
    same = exported.size == encoder.size
    metadata |= _model_index(name, scores if same else ())
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in metadata.items())
    parts = [f"---\n{''.join(lines)}---\n", _head(name, library, static, own)]
    if sources is not None:
        table = _table(
            ("source", "licence", "attribution", "pairs"),
            [source.cells for source in sources.sources],
        )
        parts.append(f"## Text\n\n{sources.note}\n\n{table}")
    parts += [_training(training, encoder.size), _scores(scores), _size(Path(folder), exported)]
    if scores and not same:
        parts.insert(
            -1,
            "The scores are those of the model with the order of words, which this folder leaves out.\n",
        )
    with atomic_write(Path(folder) / CARD_FILE) as stream:
        stream.write("\n".join(parts))


def sentences_per_second(encoder: Any, symbols: Sequence[str]) -> float:
    """Measure `encode` on this machine, from text of random pieces to embeddings, after a short
    warm-up.
    """
    pieces = [symbol for symbol in symbols[len(SPECIAL) :] if symbol.strip(WORD_START)]
    drawn = np.random.default_rng(1).choice(len(pieces), (TIMED_SENTENCES, TIMED_PIECES))
    texts = ["".join(pieces[number] for number in row).replace(WORD_START, " ") for row in drawn]
    encoder.encode(texts[:100])
    start = time.perf_counter()
    encoder.encode(texts)
    return TIMED_SENTENCES / (time.perf_counter() - start)


def _metadata(
    training: dict[str, Any], sources: TextSources | None, static: bool
) -> dict[str, Any]:
    """Return what hubs read of a model: languages, licence and kind; they know no licence that is
    many.
    """
    names = [*(training.get("pairs") or {}), *(training.get("lang_pairs") or "").split(",")]
    languages = sorted({language for name in names if name for language in name.strip().split("-")})
    licence = {"license": "unknown"}
    if sources is not None:
        licence = {
            "license": "other",
            "license_name": "by-source",
            "license_link": f"{CARD_FILE}#text",
        }
    tags = [*TAGS, *(STATIC_TAGS if static else ())]
    return {"language": languages, **licence, "tags": tags, "pipeline_tag": "sentence-similarity"}


def _model_index(name: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the scores as hubs read them; nothing where there are none."""
    scores = list(latest(scores).values())
    results = [
        {
            "task": {"type": "sentence-similarity", "name": score.protocol},
            "dataset": {"type": score.task, "name": _name(score, scores)},
            "metrics": [{"type": kind, "value": value} for kind, value in score.values.items()],
        }
        for score in scores
    ]
    return {"model-index": [{"name": name, "results": results}]} if results else {}


def _head(name: str, library: str, static: bool, own: bool) -> str:
    """Name the model, and show how libraries load it: a folder with an `own` module by a flag."""
    libraries = ["sentence_transformers"] if library == ST else []
    libraries += ["model2vec"] if library == ST and static else []
    codes = {
        "sentence_transformers": f'''
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}"{", trust_remote_code=True" if own else ""})
embeddings = model.encode(["A dog.", "Un chien."])
''',
        "model2vec": f'''
from model2vec import StaticModel

model = StaticModel.from_pretrained("{name}")
embeddings = model.encode(["A dog.", "Un chien."])
''',
    }
    blocks = "".join(f"\n```python{codes[library]}```\n" for library in libraries)
    return f'''# {name}

Cross-lingual sentence embeddings, trained with fairseq-lxsr {__version__}.

```python
from fairseq_lxsr import SentenceEncoder

encoder = SentenceEncoder.from_pretrained("{name}")
embeddings = encoder.encode(["A dog.", "Un chien."], normalize=True)  # float32 [2, width]
```
{blocks}'''


def _training(training: dict[str, Any], size: Any) -> str:
    pairs, options = training.get("pairs") or {}, dict(training.get("options") or {})
    for weight, others in OF_WEIGHT.items():
        if options.get(weight) == 0:
            options = {name: value for name, value in options.items() if name not in others}
    gated = size.num_layers and getattr(size, "gated", False)
    text = ", ".join(f"{name}: {count:,} pairs" for name, count in pairs.items())
    rows = {
        "text": text or training.get("lang_pairs"),
        "objective": training.get("objective"),
        **{name.replace("_", " "): value for name, value in options.items() if value},  # 0 is off
        "layers": f"{size.num_layers or 'none'}{', gated' if gated else ''}",
        "updates": training.get("updates"),
        "went on from": "another checkpoint, not counted above"
        if training.get("finetuned")
        else None,
        "decay of the average of the weights": training.get("ema_decay"),
        "seed": training.get("seed"),
        "teacher, whose vectors these can be compared with": training.get("teacher"),
    }
    return "## Training\n\n" + _table(
        ("", ""), [(name, value) for name, value in rows.items() if value is not None]
    )


def _scores(scores: Sequence[Score]) -> str:
    scores = list(latest(scores).values())
    if not scores:
        return "## Scores\n\nNone yet: `lxsr eval ... --output scores.jsonl`, then `lxsr export card`.\n"
    rows = [
        (_name(score, scores), ", ".join(starmap(_written, score.values.items())))
        for score in scores
    ]
    signatures = "\n".join(
        f"    {signature}" for signature in dict.fromkeys(score.signature for score in scores)
    )
    return "## Scores\n\n" + _table(("", "percent"), rows) + f"\nSignatures:\n\n{signatures}\n"


def _written(name: str, value: float) -> str:
    return f"{name} {value:.4f} (not percent)" if name in NOT_PERCENT else f"{name} {value:.1f}"


def _name(score: Score, scores: Sequence[Score]) -> str:
    """Name a score by protocol, task and those settings that differ between scores of this task."""
    task = score.protocol, score.task
    others = [other.signed_settings for other in scores if (other.protocol, other.task) == task]
    own = {
        k: v for k, v in score.signed_settings.items() if any(other.get(k) != v for other in others)
    }
    return ", ".join(
        [" ".join(task), *(str(v) if k == "metric" else f"{k} {v}" for k, v in own.items())]
    )


def _size(folder: Path, encoder: Any) -> str:
    per_second = sentences_per_second(encoder, encoder.tokenizer.symbols)
    text = f"{TIMED_SENTENCES:,} sentences of {TIMED_PIECES} random pieces, not met before"
    size = sum(
        path.stat().st_size
        for path in folder.iterdir()
        if path.is_file() and path.name != CARD_FILE
    )
    rows = [
        ("parameters", f"{encoder.parameters / 1e6:.1f} M"),
        ("width of an embedding", encoder.output_dim),
        ("model folder", f"{size / 1e6:.1f} MB"),
        (
            f"speed, {text}",
            f"{per_second:,.0f} sentences/s ({encoder.device}, {usable_threads()} threads)",
        ),
        ("model", encoder.fingerprint),
    ]
    return "## Size and speed\n\n" + _table(("", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"
