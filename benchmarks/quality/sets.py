"""Evaluation of sentence encoders: retrieval, minimal pairs and zero-shot classification.

All functions take a function from sentences to embeddings, so that models of other libraries are
evaluated with the same code.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
# Aligned sentences of each set, by language.
Sets = dict[str, dict[str, list[str]]]
# The file of each set; {code} is the three-letter code of its language, {three} that of the
# language
# other than English.
SETS = {
    "PUD": "pud.{language}",
    "Tatoeba": "tatoeba-v1.{three}-eng.{code}",
    "Multi30k 2017": "multi30k-test2017flickr.{language}",
    "XQuAD questions": "xquad-questions.{language}",
    "XQuAD paragraphs": "xquad-paragraphs.{language}",
}
THREE = {"en": "eng", "fr": "fra", "de": "deu", "es": "spa", "it": "ita", "cs": "ces", "ru": "rus"}
THREE |= {"pt": "por", "zh": "cmn", "ja": "jpn", "hu": "hun", "pl": "pol", "tr": "tur"}
CLASSIFICATION = ("ha-intents", "xlmt-sentiment")
CANDIDATES = 150_000
# Standard deviation of the embeddings that classifiers read.
SPREAD = 0.5
WORD = re.compile(r"\w+", re.UNICODE)


def eval_sets(data: Path, pair: str) -> Sets:
    """Read the evaluation sets that exist in both languages of a pair."""
    folder = data / "eval"
    return _read_sets({name: folder / f"{file}.txt.gz" for name, file in SETS.items()}, pair)


def tuning_sets(data: Path, work: Path, pair: str) -> Sets:
    """Read the sets to choose recipes by: valid/, and what `lxsr prepare` held out."""
    patterns = {
        "technical": data / "valid" / f"tech.{pair}.{{language}}.txt.gz",
        "Multi30k": data / "valid" / "multi30k-val.{language}.txt.gz",
        "held out": work / "corpus" / pair / "valid.{language}",
    }
    return _read_sets(patterns, pair)


def _read_sets(patterns: dict[str, Path], pair: str) -> Sets:
    languages = pair.split("-")
    three = next(THREE[language] for language in languages if language != "en")
    sets = {}
    for name, pattern in patterns.items():
        files = {}
        for language in languages:
            path = str(pattern).format(language=language, three=three, code=THREE[language])
            files[language] = Path(path)
        if all(file.is_file() for file in files.values()):
            sets[name] = {language: read_text(file) for language, file in files.items()}
    return sets


def read_text(path: Path) -> list[str]:
    """Return the lines of a file, which may be longer than a sentence."""
    return list(read_lines(path, is_sentence=False))


# -- Distractors


def distractors(
    data: Path, language: str, pair: str, count: int, excluded: set[str], more: Sequence[str] = ()
) -> list[str]:
    """Return distinct sentences of a language, to be added to the candidates of a search.

    Text that is not in train/ of the pair comes first: novels, tuning text, evaluation sets of
    other pairs, and for English also training text of other pairs. If that is not enough, sentences
    of the training text follow, and those of further folders last.

    Args:
        data: folder of the text.
        language: language of the sentences.
        pair: language pair of the training.
        count: maximum number of sentences.
        excluded: sentences to leave out.
        more: further folders of training text.
    """
    trained_files = sorted(data.glob(f"train/*.{pair}.{language}.txt.gz"))
    unseen_files = _unseen_files(data, language, trained_files)
    trained_files.append(data / "train" / f"multi30k.{language}.txt.gz")
    trained = set(_lines(trained_files))
    for folder in more:
        trained_files += sorted(data.glob(f"{folder}/*.{pair}.{language}.txt.gz"))
    chosen: dict[str, None] = {}
    for files, barred in ((unseen_files, trained | excluded), (trained_files, excluded)):
        for line in _lines(files):
            if line and line not in barred:
                chosen.setdefault(line)
            if len(chosen) == count:
                return list(chosen)
    return list(chosen)


def _unseen_files(data: Path, language: str, trained_files: Sequence[Path]) -> list[Path]:
    """Return the files of a language that are not in the training text of the pair."""
    files = [data / "docs" / f"novels.{language}.txt.gz"]
    files += sorted((data / "valid").glob(f"*.{language}.txt.gz"))
    files += sorted((data / "eval").glob(f"*.{THREE[language]}.txt.gz"))
    if language == "en":
        english = sorted(data.glob("train/*.en-*.en.txt.gz"))
        files += [path for path in english if path not in trained_files]
    return files


def _lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the files that exist."""
    for file in files:
        if file.is_file():
            yield from read_lines(file, is_sentence=False)


# -- Retrieval


class Retrieval:
    """Retrieval in some sets among their own sentences and among distractors.

    Args:
        sets: the sets.
        crowd: distractors by language.
        trained_words: words of the training text by language.
        reranker: scores the nearest neighbours again; None for cosine similarity alone.
    """

    def __init__(
        self,
        sets: Sets,
        crowd: dict[str, list[str]],
        trained_words: dict[str, set[str]],
        reranker: Reranker | None = None,
    ):
        self.sets = sets
        self.crowd = crowd
        self.trained_words = trained_words
        self.reranker = reranker
        self.languages = list(crowd)

    def scores(self, encode: Encode) -> dict[str, dict]:
        """Return the scores of a model, by set and direction."""
        crowd = {language: normalise_rows(encode(lines)) for language, lines in self.crowd.items()}
        scores: dict[str, dict] = {}
        for name, sides in self.sets.items():
            vectors = {}
            for language in self.languages:
                vectors[language] = normalise_rows(encode(sides[language]))
            scores[name] = {}
            for source, target in (self.languages, self.languages[::-1]):
                candidates = [vectors[target], crowd[target]]
                if self.reranker:
                    alone, right = self.reranked(sides, source, target, vectors[source], candidates)
                else:
                    alone, right = nearest_is_translation(vectors[source], *candidates)
                scores[name][f"{source}-{target}"] = {
                    "P@1": percent(right),
                    "alone": percent(alone),
                    **_by_kind(sides[source], right, self.trained_words[source]),
                }
        return scores

    def reranked(
        self,
        sides: dict[str, list[str]],
        source: str,
        target: str,
        queries: np.ndarray,
        candidates: list[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return whether the reranker ranks the translation first [N], alone and in the crowd."""
        assert self.reranker is not None
        text = sides[source], [*sides[target], *self.crowd[target]]
        first = partial(translation_is_first, self.reranker, text, queries)
        return first(candidates[:1]), first(candidates)


def retrieval(
    encode: Encode,
    sets: Sets,
    crowd: dict[str, list[str]],
    trained_words: dict[str, set[str]],
    reranker: Reranker | None = None,
) -> dict[str, dict]:
    """Return P@1 in percent of each set and direction, among its own sentences and distractors.

    Args:
        encode: the model.
        sets: the sets.
        crowd: distractors by language.
        trained_words: words of the training text by language.
        reranker: scores the nearest neighbours again.

    Returns:
        By set and direction: `P@1`; `alone`, without distractors; P@1 by thirds of the queries'
        length (`by length`, short first) and by whether all words of a query are in the training
        text (`all seen`, `some unseen`).
    """
    return Retrieval(sets, crowd, trained_words, reranker).scores(encode)


def nearest_is_translation(
    queries: np.ndarray, translations: np.ndarray, crowd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each query whether its translation is the nearest neighbour.

    Args:
        queries: unit vectors [N, D].
        translations: unit vectors of their translations [N, D].
        crowd: unit vectors of distractors [M, D].

    Returns:
        Two masks [N]: among the translations alone, and with the distractors.
    """
    similarities = (queries * translations).sum(axis=1)
    _, nearest = nearest_neighbours(queries, translations, 1)
    alone = nearest[:, 0] == np.arange(len(queries))
    crowd_similarities, _ = nearest_neighbours(queries, crowd, 1)
    return alone, alone & (similarities > crowd_similarities[:, 0])


def retrieval_with_english(
    encoder: SentenceEncoder, data: Path, languages: Sequence[str], name: str = "pud"
) -> dict[str, float]:
    """Return P@1 in percent by cosine similarity, in every direction with English.

    The candidates are the sentences of the set; PUD has 1,000.
    """
    vectors = {}
    for language in ("en", *languages):
        sentences = list(read_lines(data / "eval" / f"{name}.{language}.txt.gz"))
        vectors[language] = encoder.encode(sentences, normalize=True)
    precision = {}
    for language in languages:
        similarities = vectors["en"] @ vectors[language].T
        numbers = np.arange(len(similarities))
        for direction, axis in ((f"en-{language}", 1), (f"{language}-en", 0)):
            is_right = similarities.argmax(axis=axis) == numbers
            precision[direction] = 100 * float(is_right.mean())
    return precision


def nearest_in(
    queries: np.ndarray, parts: Sequence[np.ndarray], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and rows [N, depth] of the nearest neighbours in all parts together."""
    return merge_neighbours(_neighbours_in(queries, parts, depth), depth)


def _neighbours_in(
    queries: np.ndarray, parts: Sequence[np.ndarray], depth: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the neighbours in each part; their rows count from the first part."""
    start = 0
    for part in parts:
        cosines, rows = nearest_neighbours(queries, part, min(depth, len(part)))
        yield cosines, rows + start
        start += len(part)


def translation_is_first(
    reranker: Reranker,
    text: tuple[list[str], list[str]],
    queries: np.ndarray,
    parts: Sequence[np.ndarray],
) -> np.ndarray:
    """Return whether a reranker ranks the translation, which has the same row, first [N].

    Args:
        reranker: scores the nearest neighbours again.
        text: queries and candidates.
        queries: vectors of the queries [N, D].
        parts: vectors of the candidates, in parts.
    """
    query_lines, candidate_lines = text
    neighbours = nearest_in(queries, parts, reranker.depth)
    _, best = reranker.best(query_lines, partial(rows_of, candidate_lines), *neighbours)
    return best[:, 0] == np.arange(len(best))


def rows_of(lines: Sequence[str], rows: Iterable[int]) -> list[str]:
    """Return some of the lines."""
    return [lines[row] for row in rows]


def _by_kind(queries: list[str], right: np.ndarray, trained_words: set[str]) -> dict:
    """Return P@1 by thirds of the queries' length and by whether all their words were seen."""
    words = [WORD.findall(query.lower()) for query in queries]
    order = np.argsort([len(query_words) for query_words in words], kind="stable")
    all_seen = np.array([trained_words.issuperset(query_words) for query_words in words])
    return {
        "by length": [percent(right[part]) for part in np.array_split(order, 3)],
        "all seen": percent(right[all_seen]),
        "some unseen": percent(right[~all_seen]),
        "share all seen": percent(all_seen),
    }


def percent(right: np.ndarray) -> float | None:
    """Return the percentage of true values, rounded to two digits, or None without values."""
    return round(100 * float(right.mean()), 2) if len(right) else None


# -- Minimal pairs

# A sentence in another language, its English translation, and a changed English sentence with
# another meaning.
Triple = tuple[str, str, str]


def minimal_pairs(sets: Sets, language: str) -> dict[str, list[Triple]]:
    """Return the minimal pairs of English sentences and their translations, by rule."""
    triples: dict[str, list[Triple]] = {name: [] for name in RULES}
    for name, sides in sets.items():
        if "paragraphs" in name:
            continue
        for rule, changed in change(sides["en"]).items():
            for row, sentence in zip(changed.rows, changed.sentences, strict=True):
                triples[rule].append((sides[language][row], sides["en"][row], sentence))
    return triples


def contrast(
    encode: Encode, pairs: dict[str, list[Triple]], reranker: Reranker | None = None
) -> dict[str, float]:
    """Return the percentage of minimal pairs whose true sentence is nearer to the translation.

    The values are those of `lxsr eval minimal-pairs`.

    Args:
        encode: the model.
        pairs: minimal pairs by rule, see `minimal_pairs`.
        reranker: scores both sentences; None for cosine similarity.
    """
    values = {}
    for rule, triples in pairs.items():
        if not triples:
            continue
        columns = [list(column) for column in zip(*triples, strict=True)]
        vectors = [encode(column) for column in columns]
        if reranker:
            outcomes = preferred(_difference(reranker, columns, vectors))
        else:
            outcomes = nearer(*vectors)
        values[rule] = round(outcomes.value, 2)
    return values


def _difference(
    reranker: Reranker, columns: list[list[str]], vectors: list[np.ndarray]
) -> np.ndarray:
    """Return the scores [P] of the true sentences minus those of the changed sentences."""
    queries, true, changed = (normalise_rows(side) for side in vectors)
    # [P, 2]
    cosines = np.stack([(queries * true).sum(axis=1), (queries * changed).sum(axis=1)], axis=1)
    candidates = columns[1] + columns[2]
    ids = np.arange(len(candidates)).reshape(2, -1).T
    scores = reranker.scores(columns[0], partial(rows_of, candidates), cosines, ids)
    return scores[:, 0] - scores[:, 1]


# -- Classification


def classification(encode: Encode, folder: Path, languages: Sequence[str]) -> dict[str, float]:
    """Return the accuracy in percent of classifiers that were trained on English.

    It is the mean of five classifiers. Every tenth English text is used for validation. All
    embeddings are scaled so that the English training text has one standard deviation for all
    models, because the settings of the classifier suit one scale.
    """
    vectors, labels = _labelled(encode, folder / "en.train.tsv.gz")
    scale = SPREAD / vectors.std()
    classes, y = np.unique(labels, return_inverse=True)
    is_dev = np.arange(len(y)) % 10 == 9
    train = scale * vectors[~is_dev], y[~is_dev]
    dev = scale * vectors[is_dev], y[is_dev]
    preset = DOCUMENT_CLASSIFIERS["mldoc"]["mlp"]
    model = train_classifiers(preset, *train, *dev, len(classes))
    accuracy = {}
    for language in languages:
        vectors, labels = _labelled(encode, folder / f"{language}.test.tsv.gz")
        is_right = classes[model.predict(scale * vectors)] == labels
        accuracy[language] = round(100 * float(is_right.mean()), 2)
    return accuracy


def _labelled(encode: Encode, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the embeddings and the labels of a file of labels and texts."""
    labels = []
    texts = []
    for line in read_lines(path):
        label, text = line.split("\t", 1)
        labels.append(label)
        texts.append(text)
    return encode(texts), np.array(labels)


def words_of(paths: Sequence[Path]) -> set[str]:
    """Return all words of some files, in lower case."""
    words: set[str] = set()
    for path in paths:
        for line in read_lines(path, is_sentence=False):
            words.update(WORD.findall(line.lower()))
    return words
