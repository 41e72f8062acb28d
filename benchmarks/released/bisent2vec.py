"""Bi-Sent2Vec, the strongest bag of words of the papers, trained by its authors' program.

git clone https://github.com/epfml/Bi-Sent2Vec RELEASED && make -C RELEASED
python -m benchmarks.released.bisent2vec --released RELEASED --data DIR --work FOLDER \
    --output benchmarks/quality/results/bisent2vec.jsonl

DIR has train, eval, docs and valid as for quality.run; English-French pairs, shares of them and
candidates are the same. Each run gives one line of results; runs that are already in the file are
skipped. In Bi-Sent2Vec (Sabet et al. 2020, "Robust Cross-lingual Embeddings from Parallel
Sentences"), a sentence is the mean of the vectors of its words and, with `--ngrams 2`, of its
bigrams. It learns by negative sampling to predict its words and those of its translation. Frequent
words are predicted less often, by a threshold that must suit the size of the text: that of the
authors is for a thousand times as much text.
"""

import argparse
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.corpora import chosen_rows, prepare
from benchmarks.machine import machine
from benchmarks.quality.sets import CANDIDATES, Encode, Sets, distractors, eval_sets, retrieval
from benchmarks.script import add_result, command_line, read_results, run
from fairseq_lxsr.embeddings import Text, WordVectors
from fairseq_lxsr.files.lines import read_parallel

PAIR = "en-fr"
LANGUAGES = tuple(PAIR.split("-"))
TOKEN = re.compile(r"\w+|[^\w\s]")
# The authors' settings, except for what suits a thousandth of their text: words that occur once,
# and
# fewer buckets for bigrams.
SETTINGS = (
    "-dim 300 -lr 0.2 -neg 10 -bucket 200000 -dropoutK 4 -loss ns -thread 1 -numCheckPoints 1"
    " -verbose 1"
)
# `retrieval` splits the queries by the words of the training text, which is not needed here.
NO_WORDS: dict[str, set[str]] = {language: set() for language in LANGUAGES}


class Setting(NamedTuple):
    """The setting of a run.

    Attributes:
        share: fraction of the text to train on.
        ngrams: 1 for words, 2 for words and bigrams.
        epochs: number of epochs.
        least_count: minimum number of occurrences of a word.
        threshold: threshold on the relative frequency, above which words are subsampled.
    """

    share: float
    ngrams: int
    epochs: int
    least_count: int
    threshold: float


# The fields of a setting in the file of results.
KEY = ("share", "ngrams", "epochs", "least count", "threshold")


def marked(sentence: str, language: str) -> str:
    """Return lower-cased words and punctuation with their language, as the program reads them."""
    return " ".join(f"{token}_{language}" for token in TOKEN.findall(sentence.lower()))


def write_text(work: Path, share: float) -> Path:
    """Write the pairs of a share of the text, one per line."""
    path = work / f"text.{share:g}"
    corpus = work / "text" / "corpus" / PAIR
    source_language, target_language = LANGUAGES
    pairs = list(
        read_parallel(corpus / f"train.{source_language}", corpus / f"train.{target_language}")
    )
    with open(path, "w", encoding="utf-8") as output:
        for row in chosen_rows(len(pairs), share):
            source, target = pairs[row]
            left = marked(source, source_language)
            right = marked(target, target_language)
            output.write(f"{left} <<split>> {right}\n")
    return path


def train(program: Path, text: Path, setting: Setting) -> tuple[Path, float]:
    """Train by the authors' program, and return the model and the processor seconds."""
    _, ngrams, epochs, least_count, threshold = setting
    model = text.with_name(f"{text.name}.{ngrams}.{epochs}.{least_count}.{threshold:g}")
    options: list[object] = [*SETTINGS.split(), "-wordNgrams", ngrams, "-epoch", epochs]
    options += ["-minCount", least_count, "-t", f"{threshold:f}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run(program, "bisent2vec", "-input", text, "-output", model, *options)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return model.with_name(f"{model.name}.bin"), seconds


def encoders(program: Path, model: Path, text: Path, ngrams: int) -> dict[str, Encode]:
    """Map the names of word weightings to functions from sentences to vectors [N, 300].

    `mean` weights all words equally. `idf`, for words alone, weights them by
    log(pairs / pairs with the word), like the authors' evaluation and MUSE. A sentence of unknown
    words has a zero vector.
    """
    if ngrams > 1:
        return {"mean": partial(ask, program, model)}
    # These are the vectors that the program would print, in less time.
    mean = WordVectors(model.with_suffix(".vec"))
    idf = WordVectors(model.with_suffix(".vec"))
    lines = text.read_text(encoding="utf-8").splitlines()
    pairs_with = Counter(word for line in lines for word in set(line.split()))
    weights = [np.log(len(lines) / pairs_with.get(word, len(lines))) for word in idf.rows]
    idf.vectors *= np.array(weights, np.float32)[:, None]
    return {
        "mean": lambda sentences: mean.embed(Text(sentences)),
        "idf": lambda sentences: idf.embed(Text(sentences)),
    }


def ask(program: Path, model: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the vectors of marked sentences that the program prints."""
    text = "".join(f"{sentence}\n" for sentence in sentences)
    command = [str(program), "print-sentence-vectors", str(model)]
    done = subprocess.run(command, input=text, capture_output=True, check=True, text=True)
    vectors = np.fromstring(done.stdout, dtype=np.float32, sep=" ").reshape(len(sentences), -1)
    return np.nan_to_num(vectors)


def candidates(data: Path) -> tuple[Sets, dict[str, list[str]]]:
    """Return the evaluation sets and the distractors of each language, marked."""
    sets = eval_sets(data, PAIR)
    crowd = {}
    for language in LANGUAGES:
        sentences = {line for sides in sets.values() for line in sides[language]}
        crowd[language] = distractors(data, language, PAIR, CANDIDATES, sentences)
    for sides in (crowd, *sets.values()):
        for language, lines in sides.items():
            sides[language] = [marked(line, language) for line in lines]
    return sets, crowd


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument(
        "--released",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the authors' code, compiled",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of text and models"
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[0.03, 0.1, 0.3, 1],
        help="shares of the text (default: 0.03 0.1 0.3 1)",
    )
    parser.add_argument(
        "--ngrams",
        type=int,
        nargs="+",
        default=[1, 2],
        help="1: words, 2: words and bigrams (default: 1 2)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        nargs="+",
        default=[5, 50],
        help="numbers of epochs; the authors' is 5 (default: 5 50)",
    )
    parser.add_argument(
        "--least-count",
        type=int,
        default=2,
        help="least occurrences of a word; the authors' is 8 (default: 2)",
    )
    parser.add_argument(
        "--thresholds",
        type=float,
        nargs="+",
        default=[1e-4],
        help="thresholds of frequent words; the authors' is 5e-6 (default: 1e-4)",
    )
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def main() -> None:
    args = parse_options()
    program = (args.released / "fasttext").absolute()
    if not program.is_file():
        sys.exit(f"{program}: no such file; build the authors' program with make")
    prepare(args.data, args.work / "text", [PAIR], 16_000)
    sets, crowd = candidates(args.data)
    done = {tuple(map(result.get, KEY)) for result in read_results(args.output)}
    for key in product(args.shares, args.ngrams, args.epochs, [args.least_count], args.thresholds):
        if key in done:
            continue
        setting = Setting(*key)
        text = write_text(args.work, setting.share)
        model, seconds = train(program, text, setting)
        precisions: dict[str, dict] = {}
        for weighting, encode in encoders(program, model, text, setting.ngrams).items():
            precisions[weighting] = {}
            for name, directions in retrieval(encode, sets, crowd, NO_WORDS).items():
                precisions[weighting][name] = {
                    direction: scores["P@1"] for direction, scores in directions.items()
                }
        result = dict(zip(KEY, key, strict=True))
        result |= {"core seconds": round(seconds), "P@1": precisions, "machine": machine()}
        add_result(args.output, result)
        print(key, precisions, flush=True)


if __name__ == "__main__":
    main()
