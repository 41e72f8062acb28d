"""Quality of `lxsr run` for a language that a model lacks: --from, --teacher, or a new model.

python -m benchmarks.quality.add_language --data DIR --work FOLDER \
    --output benchmarks/quality/results/add_language.json

DIR has aligned text of the new languages, KIND.en-XX.en.txt.gz and KIND.en-XX.XX.txt.gz. The kind
of --train is trained on, and 1,000 of its pairs are kept for the test; the other kinds are test
sets. DIR/eval has the public sets, as for quality.run. Every model is what `lxsr run` exports with
its default options. Measured is P@1 among the sentences of a set, from English and into English.
English is encoded by the trained model, except for `teacher English`, where the model of --teacher
encodes it. An interrupted run resumes: each training has its scores in its folder.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import commit, machine
from benchmarks.script import add_sizes_and_seeds, command_line, lxsr, write_results
from fairseq_lxsr.embeddings import Encoder, Text, load
from fairseq_lxsr.files.lines import read_parallel
from fairseq_lxsr.vectors import normalise_rows

# Languages of the model that are evaluated on public sets before and after.
OLD_LANGUAGES = ("fr", "de", "es", "it", "pt")
# Number of pairs of the kind of --train that are kept for the test.
TEST_PAIRS = 1000
# Three-letter codes of the languages of the Tatoeba test.
TATOEBA = {"gl": "glg", "eu": "eus", "cy": "cym", "sw": "swh", "ka": "kat", "mk": "mkd"}
SCORES_FILE = "scores.json"
# Validate and save at the end only, to save time: the last checkpoint is exported.
ONCE = ("--save-interval", 10_000, "--validate-interval", 10_000, "--num-workers", 0)

Pair = tuple[str, str]
# Pairs with English of each test set of a language.
Sets = dict[str, list[Pair]]
# P@1 in percent from English and into English, by test set.
Scores = dict[str, list[float]]


class Texts:
    """The pairs of a new language with English: for training, and of each test set.

    Args:
        data: the folder of texts.
        language: the new language.
        trained_kind: the kind of text to train on.
    """

    def __init__(self, data: Path, language: str, trained_kind: str):
        self.language = language
        pair = f"en-{language}"
        self.tests: Sets = {}
        for english in sorted(data.glob(f"*.{pair}.en.txt.gz")):
            kind = english.name.removesuffix(f".{pair}.en.txt.gz")
            foreign = english.with_name(f"{kind}.{pair}.{language}.txt.gz")
            self.tests[kind] = list(read_parallel(english, foreign))
        pairs = self.tests[trained_kind]
        self.tests[trained_kind] = pairs[:TEST_PAIRS]
        self.training = pairs[TEST_PAIRS:]
        if language in TATOEBA:
            prefix = f"tatoeba-v1.{TATOEBA[language]}-eng"
            english = data / "eval" / f"{prefix}.eng.txt.gz"
            foreign = data / "eval" / f"{prefix}.{TATOEBA[language]}.txt.gz"
            self.tests["Tatoeba"] = list(read_parallel(english, foreign))

    def write(self, prefix: Path, count: int, seed: int) -> int:
        """Write some of the training pairs in a random order, and return their number."""
        rows = np.random.default_rng(seed).permutation(len(self.training))[:count]
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for side, language in enumerate(("en", self.language)):
            lines = "".join(f"{self.training[row][side]}\n" for row in rows)
            Path(f"{prefix}.{language}").write_text(lines, encoding="utf-8")
        return len(rows)


def score_sets(encoder: Encoder, sets: Sets, language: str) -> Scores:
    """Return P@1 of each set."""
    return {name: p_at_1(encoder, pairs, language) for name, pairs in sets.items()}


def score_old_languages(encoder: Encoder, data: Path) -> Scores:
    """Return P@1 on PUD of languages that the model knows and that have a file, by language."""
    scores: Scores = {}
    for language in OLD_LANGUAGES:
        english = data / "eval" / "pud.en.txt.gz"
        foreign = data / "eval" / f"pud.{language}.txt.gz"
        if not foreign.is_file():
            continue
        scores[language] = p_at_1(encoder, list(read_parallel(english, foreign)), language)
    return scores


def p_at_1(encoder: Encoder, pairs: Sequence[Pair], language: str) -> list[float]:
    """Return P@1 in percent among the sentences of a set, from English and into English."""
    english = normalise_rows(encoder.embed(Text([pair[0] for pair in pairs], "en")))
    foreign = normalise_rows(encoder.embed(Text([pair[1] for pair in pairs], language)))
    similarity = english @ foreign.T
    rows = np.arange(len(pairs))
    into_foreign = (similarity.argmax(axis=1) == rows).mean()
    into_english = (similarity.argmax(axis=0) == rows).mean()
    return [round(100 * float(value), 1) for value in (into_foreign, into_english)]


def measure(args: argparse.Namespace, texts: Texts, way: str, count: int, seed: int) -> dict:
    """Train a model in one way, and return its row of the results."""
    language = texts.language
    work = args.work.absolute() / f"{language}.{count}.{way}.{seed}"
    scores_file = work / SCORES_FILE
    if scores_file.is_file():
        # The scores of an earlier run.
        return json.loads(scores_file.read_text())
    pairs = texts.write(work / "text", count, seed)
    options: list[object] = ["--lang-pair", f"en-{language}", "--work", work, "--seed", seed, *ONCE]
    options += args.options.split()
    if way != "nothing":
        options += [f"--{way}", args.model]
    start = time.perf_counter()
    lxsr("run", work / "text", *options)
    seconds = time.perf_counter() - start
    model = work / "model"
    row: dict = {"language": language, "pairs": pairs, "way": way, "seed": seed}
    row["minutes"] = round(seconds / 60, 1)
    row["P@1"] = score_sets(load(model), texts.tests, language)
    if way == "teacher":
        beside = load({"en": args.model, language: model})
        row["teacher English"] = score_sets(beside, texts.tests, language)
    if way == "from":
        row["old languages"] = score_old_languages(load(model), args.data)
    # Checkpoints of a large model fill the disk.
    shutil.rmtree(work / "checkpoints")
    write_results(scores_file, row)
    return row


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of texts")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of text and models"
    )
    parser.add_argument(
        "--model", default="lxsr-static", help="model to start from (default: lxsr-static)"
    )
    parser.add_argument(
        "--train", default="help", metavar="KIND", help="kind to train on (default: help)"
    )
    parser.add_argument(
        "--new",
        nargs="+",
        default=["gl", "eu"],
        metavar="LANG",
        help="new languages (default: gl eu)",
    )
    add_sizes_and_seeds(parser)
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["from", "teacher", "nothing"],
        help="ways to train (default: from teacher nothing)",
    )
    parser.add_argument(
        "--options", default="", metavar="OPTIONS", help="further options of every training"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    texts = [Texts(args.data, language, args.train) for language in args.new]
    untrained = load(args.model)
    result: dict = {
        "machine": machine(),
        "commit": commit(),
        "model": args.model,
        "before": {
            "old languages": score_old_languages(untrained, args.data),
            **{text.language: score_sets(untrained, text.tests, text.language) for text in texts},
        },
        "rows": [],
    }
    for seed in args.seeds:
        for count in args.pairs:
            for way in args.ways:
                for text in texts:
                    row = measure(args, text, way, count, seed)
                    result["rows"].append(row)
                    print(json.dumps(row), flush=True)
                    # After each row, in case the run is interrupted.
                    write_results(args.output, result)


if __name__ == "__main__":
    main()
