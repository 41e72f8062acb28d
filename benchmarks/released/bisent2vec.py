"""Bi-Sent2Vec, the strongest bag of words of the papers, trained by its authors' program on our
text.

git clone https://github.com/epfml/Bi-Sent2Vec RELEASED && make -C RELEASED
python -m benchmarks.released.bisent2vec --released RELEASED --data DIR --work FOLDER \
    --output benchmarks/quality/results/bisent2vec.jsonl

DIR has train, eval, docs and valid as for `quality.run`: English-French pairs, shares of them and
candidates are the same. One line of results a run; what is in the file is left out. Sabet et al.
2020, "Robust Cross-lingual Embeddings from Parallel Sentences": a sentence is the mean of the
vectors of its words and, with `--ngrams 2`, of its bigrams, and learns by negative sampling to
predict its words and those of its translation. A word is predicted the less often the more frequent
it is; the threshold of this suits the size of the text: the authors' is for a thousand times as
much.
"""

import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.corpora import chosen_rows, prepare
from benchmarks.machine import machine
from benchmarks.quality.sets import CANDIDATES, Encode, distractors, eval_sets, retrieval
from benchmarks.script import add_result, command_line, read_results, run
from fairseq_lxsr.embeddings import Text, WordVectors
from fairseq_lxsr.files.lines import read_parallel

PAIR = "en-fr"
TOKEN = re.compile(r"\w+|[^\w\s]")
# the authors' but for what fits a thousandth of their text: words that occur once, fewer cells for
# bigrams
SETTINGS = "-dim 300 -lr 0.2 -neg 10 -bucket 200000 -dropoutK 4 -loss ns -thread 1 -numCheckPoints 1 -verbose 1"
# seen, not asked for
NO_WORDS: dict[str, set[str]] = {language: set() for language in PAIR.split("-")}
KEY = ("share", "ngrams", "epochs", "least count", "threshold")


def marked(sentence: str, language: str) -> str:
    """Words in lower case and punctuation, each with its language, as the program reads them."""
    return " ".join(f"{token}_{language}" for token in TOKEN.findall(sentence.lower()))


def write_text(work: Path, share: float) -> Path:
    """Write the pairs of a share of the text, one a line."""
    path, languages = work / f"text.{share:g}", PAIR.split("-")
    source, target = (
        work / "text" / "corpus" / PAIR / f"train.{language}" for language in languages
    )
    pairs = list(read_parallel(source, target))
    with open(path, "w", encoding="utf-8") as output:
        for row in chosen_rows(len(pairs), share):
            sides = (marked(*side) for side in zip(pairs[row], languages, strict=True))
            output.write(" <<split>> ".join(sides) + "\n")
    return path


def train(
    program: Path, text: Path, ngrams: int, epochs: int, least: int, threshold: float
) -> tuple[Path, float]:
    """Train by the authors' program. Returns: its model, and seconds of a core."""
    model = text.with_name(f"{text.name}.{ngrams}.{epochs}.{least}.{threshold:g}")
    options = [
        *SETTINGS.split(),
        "-wordNgrams",
        ngrams,
        "-epoch",
        epochs,
        "-minCount",
        least,
        "-t",
        f"{threshold:f}",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run(program, "bisent2vec", "-input", text, "-output", model, *options)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return model.with_name(f"{model.name}.bin"), seconds


def encoders(program: Path, model: Path, text: Path, ngrams: int) -> dict[str, Encode]:
    """By the weights of words in a sentence, what gives the vectors [N, 300]; one of unknown words
    alone is zero.

    `idf` is how the authors' evaluation, that of MUSE, weighs words: log(pairs / pairs with the
    word), of the text.
    """
    if ngrams > 1:
        return {"mean": partial(ask, program, model)}
    # what the program says, in less time
    mean, idf = (WordVectors(model.with_suffix(".vec")) for _ in range(2))
    lines = text.read_text(encoding="utf-8").splitlines()
    pairs_with = Counter(word for line in lines for word in set(line.split()))
    idf.vectors *= np.array(
        [[np.log(len(lines) / pairs_with.get(word, len(lines)))] for word in idf.rows], np.float32
    )
    return {
        "mean": lambda sentences: mean.embed(Text(sentences)),
        "idf": lambda sentences: idf.embed(Text(sentences)),
    }


def ask(program: Path, model: Path, sentences: Sequence[str]) -> np.ndarray:
    """Ask the program for the vectors of marked sentences."""
    text = "".join(f"{sentence}\n" for sentence in sentences)
    command = [str(program), "print-sentence-vectors", str(model)]
    done = subprocess.run(command, input=text, capture_output=True, check=True, text=True)
    vectors = np.fromstring(done.stdout, dtype=np.float32, sep=" ").reshape(len(sentences), -1)
    return np.nan_to_num(vectors)


def candidates(data: Path) -> tuple[dict, dict]:
    """The sets and the other candidates of each language, marked."""
    sets = eval_sets(data, PAIR)
    crowd = {}
    for language in PAIR.split("-"):
        known = {sentence for sides in sets.values() for sentence in sides[language]}
        crowd[language] = distractors(data, language, PAIR, CANDIDATES, known)
    for sides in (crowd, *sets.values()):
        for language, sentences in sides.items():
            sides[language] = [marked(sentence, language) for sentence in sentences]
    return sets, crowd


def main() -> None:
    parser = command_line(__doc__, "FILE.jsonl", required=True)
    parser.add_argument(
        "--released", type=Path, required=True, metavar="FOLDER", help="the authors' code, compiled"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, see above")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made"
    )
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.03, 0.1, 0.3, 1], help="of the text"
    )
    parser.add_argument(
        "--ngrams", type=int, nargs="+", default=[1, 2], help="1: words, 2: bigrams too"
    )
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 50], help="5 is the authors'")
    parser.add_argument(
        "--least-count", type=int, default=2, help="of a word; 8 is the authors' (default: 2)"
    )
    parser.add_argument(
        "--thresholds",
        type=float,
        nargs="+",
        default=[1e-4],
        help="of frequent words; authors: 5e-6",
    )
    args = parser.parse_args()
    args.work = args.work.absolute()
    program = (args.released / "fasttext").absolute()
    if not program.is_file():
        sys.exit(f"{program}: no such file; compile the authors' code")
    prepare(args.data, args.work / "text", [PAIR], 16_000)
    sets, crowd = candidates(args.data)
    done = {tuple(map(result.get, KEY)) for result in read_results(args.output)}
    for key in product(args.shares, args.ngrams, args.epochs, [args.least_count], args.thresholds):
        if key in done:
            continue
        text = write_text(args.work, key[0])
        model, seconds = train(program, text, *key[1:])
        scores = {}
        for weights, encode in encoders(program, model, text, key[1]).items():
            found = retrieval(encode, sets, crowd, NO_WORDS)
            scores[weights] = {
                name: {way: row["P@1"] for way, row in ways.items()} for name, ways in found.items()
            }
        row = dict(zip(KEY, key, strict=True)) | {
            "core seconds": round(seconds),
            "P@1": scores,
            "machine": machine(),
        }
        add_result(args.output, row)
        print(key, scores, flush=True)


if __name__ == "__main__":
    main()
