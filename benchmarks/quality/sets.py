"""What a sentence encoder is measured on: retrieval among many, minimal pairs, zero-shot
classification.

All of it takes a function from sentences to embeddings: models of other libraries are measured by
the same code.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.classifier import train_classifiers
from fairseq_lxsr.evaluation.protocols.documents import DOCUMENT_CLASSIFIERS
from fairseq_lxsr.evaluation.protocols.minimal_pairs import RULES, change, nearer, preferred
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.search.reranker import Reranker
from fairseq_lxsr.vectors import merge_neighbours, nearest_neighbours, normalise_rows

Encode = Callable[[Sequence[str]], np.ndarray]
SETS = {  # name -> file of a language pair, where there is one
    "PUD": "pud.{language}",
    "Tatoeba": "tatoeba-v1.{three}-eng.{own}",
    "Multi30k 2017": "multi30k-test2017flickr.{language}",
    "XQuAD questions": "xquad-questions.{language}",
    "XQuAD paragraphs": "xquad-paragraphs.{language}",
}
THREE = {"en": "eng", "fr": "fra", "de": "deu", "es": "spa", "it": "ita", "cs": "ces", "ru": "rus"}
THREE |= {"pt": "por", "zh": "cmn", "ja": "jpn", "hu": "hun", "pl": "pol", "tr": "tur"}
CLASSIFICATION = ("ha-intents", "xlmt-sentiment")
CANDIDATES = 150_000
SPREAD = 0.5  # standard deviation of what classifiers read
WORD = re.compile(r"\w+", re.UNICODE)


def eval_sets(data: Path, pair: str) -> dict[str, dict[str, list[str]]]:
    """Sentences of the sets that are there in both languages: set -> language -> N lines,
    aligned.
    """
    return _read_sets(
        {name: data / "eval" / f"{pattern}.txt.gz" for name, pattern in SETS.items()}, pair
    )


def _read_sets(patterns: dict[str, Path], pair: str) -> dict[str, dict[str, list[str]]]:
    found, languages = {}, pair.split("-")
    three = next(THREE[language] for language in languages if language != "en")
    for name, pattern in patterns.items():
        files = {
            language: Path(str(pattern).format(language=language, three=three, own=THREE[language]))
            for language in languages
        }
        if all(file.is_file() for file in files.values()):
            found[name] = {
                language: list(read_lines(file, is_sentence=False))
                for language, file in files.items()
            }
    return found


def tuning_sets(data: Path, work: Path, pair: str) -> dict[str, dict[str, list[str]]]:
    """As `eval_sets`, of text to choose recipes by: valid/ and what `lxsr prepare` held out of the
    training text.
    """
    sets = {
        "technical": data / "valid" / f"tech.{pair}.{{language}}.txt.gz",
        "Multi30k": data / "valid" / "multi30k-val.{language}.txt.gz",
        "held out": work / "corpus" / pair / "valid.{language}",
    }
    return _read_sets(sets, pair)


def distractors(
    data: Path, language: str, pair: str, count: int, known: set[str], more: Sequence[str] = ()
) -> list[str]:
    """Up to `count` different sentences of a language that none of `known` is.

    Text that is not in train/ of `pair` comes first: novels, tuning text, evaluation sets of other
    pairs, for English also training text of other pairs; where that is too little, sentences that
    were trained on follow, those of `more` folders of training text last.
    """
    outside = [
        data / "docs" / f"novels.{language}.txt.gz",
        *sorted((data / "valid").glob(f"*.{language}.txt.gz")),
    ]
    outside += sorted(
        (data / "eval").glob(f"*.{THREE[language] if language != 'en' else 'eng'}.txt.gz")
    )
    inside = sorted(data.glob(f"train/*.{pair}.{language}.txt.gz"))
    if language == "en":
        outside += [
            path for path in sorted(data.glob("train/*.en-*.en.txt.gz")) if path not in inside
        ]
    inside.append(data / "train" / f"multi30k.{language}.txt.gz")
    further = [
        path
        for folder in more
        for path in sorted(data.glob(f"{folder}/*.{pair}.{language}.txt.gz"))
    ]
    found: dict[str, None] = {}
    trained = {
        line for path in inside if path.is_file() for line in read_lines(path, is_sentence=False)
    }
    for paths, barred in ((outside, trained | known), (inside + further, known)):
        for path in paths:
            for line in read_lines(path, is_sentence=False) if path.is_file() else ():
                if line and line not in barred:
                    found.setdefault(line)
                if len(found) == count:
                    return list(found)
    return list(found)


def retrieval(
    encode: Encode,
    sets: dict[str, dict[str, list[str]]],
    others: dict[str, list[str]],
    seen: dict[str, set[str]],
    reranker: Reranker | None = None,
) -> dict[str, dict]:
    """P@1 in percent of each set and direction among its own sentences and the distractors.

    Args:
        others: distractors by language.
        seen: words of the training text by language.
        reranker: scores the nearest again.
    Returns: set -> direction -> `P@1`, `alone` (without distractors), and P@1 by thirds of the
        queries' length (`by length`, short first) and by whether all words of a query were seen
        (`all seen`, `some unseen`).
    """
    languages = list(others)
    crowd = {language: normalise_rows(encode(sentences)) for language, sentences in others.items()}
    found: dict[str, dict] = {}
    for name, sides in sets.items():
        vectors = {language: normalise_rows(encode(sides[language])) for language in languages}
        found[name] = {}
        for source, target in (languages, languages[::-1]):
            queries, parts = vectors[source], [vectors[target], crowd[target]]
            if reranker:
                text = sides[source], [*sides[target], *others[target]]
                alone, right = (
                    first_again(reranker, text, queries, some) for some in (parts[:1], parts)
                )
            else:
                own = (queries * vectors[target]).sum(axis=1)
                _, which = nearest_neighbours(queries, vectors[target], 1)
                alone = which[:, 0] == np.arange(len(own))
                far, _ = nearest_neighbours(queries, crowd[target], 1)
                right = alone & (own > far[:, 0])
            found[name][f"{source}-{target}"] = {
                "P@1": percent(right),
                "alone": percent(alone),
                **_by_kind(sides[source], right, seen[source]),
            }
    return found


def retrieval_with_english(
    encoder: SentenceEncoder, data: Path, languages: Sequence[str], name: str = "pud"
) -> dict[str, float]:
    """P@1 in percent among the sentences of a set (PUD has 1,000), by cosine, of every direction
    with English.
    """
    vectors = {
        language: encoder.encode(
            list(read_lines(data / "eval" / f"{name}.{language}.txt.gz")), normalize=True
        )
        for language in ("en", *languages)
    }
    found = {}
    for language in languages:
        similarities = vectors["en"] @ vectors[language].T
        for name, axis in ((f"en-{language}", 1), (f"{language}-en", 0)):
            found[name] = 100 * float(
                (similarities.argmax(axis=axis) == np.arange(len(similarities))).mean()
            )
    return found


def nearest_in(
    queries: np.ndarray, parts: Sequence[np.ndarray], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and rows [N, depth] of the nearest in all parts together."""
    starts = np.cumsum([0, *map(len, parts)])
    found = (nearest_neighbours(queries, part, min(depth, len(part))) for part in parts)
    return merge_neighbours(
        ((cosines, ids + start) for (cosines, ids), start in zip(found, starts, strict=False)),
        depth,
    )


def first_again(
    reranker: Reranker,
    text: tuple[list[str], list[str]],
    queries: np.ndarray,
    parts: Sequence[np.ndarray],
) -> np.ndarray:
    """Whether the translation, of the same row, is the first of the nearest that are scored again
    [N].
    """
    near = nearest_in(queries, parts, reranker.depth)
    _, best = reranker.best(text[0], lambda rows: [text[1][row] for row in rows], *near)
    return best[:, 0] == np.arange(len(best))


def _by_kind(queries: list[str], right: np.ndarray, seen: set[str]) -> dict:
    words = [WORD.findall(query.lower()) for query in queries]
    order = np.argsort([len(found) for found in words], kind="stable")
    known = np.array([all(word in seen for word in found) for found in words])
    return {
        "by length": [percent(right[part]) for part in np.array_split(order, 3)],
        "all seen": percent(right[known]),
        "some unseen": percent(right[~known]),
        "share all seen": percent(known),
    }


def percent(right: np.ndarray) -> float | None:
    return round(100 * float(right.mean()), 2) if len(right) else None


# -- minimal pairs


def minimal_pairs(
    sets: dict[str, dict[str, list[str]]], other: str
) -> dict[str, list[tuple[str, str, str]]]:
    """Rule -> (sentence in `other`, its English, English that differs a little and means something
    else).
    """
    found: dict[str, list[tuple[str, str, str]]] = {name: [] for name in RULES}
    for name, sides in sets.items():
        if "paragraphs" in name:
            continue
        for rule, changed in change(sides["en"]).items():
            found[rule] += [
                (sides[other][row], sides["en"][row], sentence)
                for row, sentence in zip(changed.rows, changed.sentences, strict=True)
            ]
    return found


def contrast(
    encode: Encode, pairs: dict[str, list[tuple[str, str, str]]], reranker: Reranker | None = None
) -> dict[str, float]:
    """Per cent of minimal pairs whose true sentence is nearer to the translation, as `lxsr eval
    minimal-pairs`.

    Args:
        reranker: scores both sentences.
    """
    found = {}
    for rule, triples in pairs.items():
        if not triples:
            continue
        columns = [list(column) for column in zip(*triples, strict=True)]
        vectors = [encode(column) for column in columns]
        found[rule] = (
            preferred(_difference(reranker, columns, vectors)) if reranker else nearer(*vectors)
        )
    return {rule: round(outcomes.value, 2) for rule, outcomes in found.items()}


def _difference(
    reranker: Reranker, columns: list[list[str]], vectors: list[np.ndarray]
) -> np.ndarray:
    """Scores of the true sentences less those of the changed ones [P]."""
    units = [normalise_rows(side) for side in vectors]
    cosines = np.stack([(units[0] * other).sum(axis=1) for other in units[1:]], axis=1)  # [P, 2]
    both, count = columns[1] + columns[2], len(columns[0])
    ids = np.arange(2 * count).reshape(2, count).T
    scores = reranker.scores(columns[0], lambda rows: [both[row] for row in rows], cosines, ids)
    return scores[:, 0] - scores[:, 1]


# -- classification


def classification(encode: Encode, folder: Path, languages: Sequence[str]) -> dict[str, float]:
    """Accuracy in percent, mean of five, of classifiers trained on English; every tenth text of it
    is for dev.

    Embeddings are brought to one spread, that of the English training text: the classifier's
    settings suit one scale.
    """

    def part(language: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        rows = [line.split("\t", 1) for line in read_lines(folder / f"{language}.{name}.tsv.gz")]
        return encode([text for _, text in rows]), np.array([label for label, _ in rows])

    x, labels = part("en", "train")
    scale = SPREAD / x.std()
    classes, y = np.unique(labels, return_inverse=True)
    is_dev = np.arange(len(y)) % 10 == 9
    preset = DOCUMENT_CLASSIFIERS["mldoc"]["mlp"]
    model = train_classifiers(
        preset, scale * x[~is_dev], y[~is_dev], scale * x[is_dev], y[is_dev], len(classes)
    )
    found = {}
    for language in languages:
        x, labels = part(language, "test")
        found[language] = round(
            100 * float((classes[model.predict(scale * x)] == labels).mean()), 2
        )
    return found


def words_of(paths: Sequence[Path]) -> set[str]:
    """All words of some files, in lower case."""
    return {word for path in paths for word in _words(path)}


def _words(path: Path) -> Iterator[str]:
    for line in read_lines(path, is_sentence=False):
        yield from WORD.findall(line.lower())
