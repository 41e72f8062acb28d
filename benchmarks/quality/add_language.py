"""Quality of `lxsr run` for a language that a model lacks: --from, --teacher, or from scratch.

python -m benchmarks.quality.add_language --data DIR --work FOLDER \
    --output benchmarks/quality/results/add_language.json

Pairs with English are drawn from all text of DIR/more; 85 to 94 % of the pairs of a run are
training pairs, the rest is held out. Measured is P@1 on Tatoeba in the new language, among the
sentences of the set, and on public sets in languages of the model. English is encoded by the
trained model, except for `P@1` after --teacher MODEL, where MODEL encodes it; `alone` then has the
values with the trained model.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.corpora import training_pairs
from benchmarks.machine import commit, machine
from benchmarks.quality.sets import eval_sets
from benchmarks.script import command_line, lxsr, write_results
from fairseq_lxsr.embeddings import Encoder, Text, load
from fairseq_lxsr.vectors import normalise_rows

# Languages of the model whose sets are measured before and after.
OLD_LANGUAGES = ("fr", "de", "es", "it")
MEASURED_SETS = ("Tatoeba", "PUD")
FROM_SCRATCH = ("--encoder-embed-dim", 256)
# Save and validate at the end only, to save time.
ONCE = ("--save-interval", 10_000, "--validate-interval", 10_000)
WAYS = ("from", "teacher", "nothing")

# P@1 in percent from English and into English, by language and set.
Scores = dict[str, dict[str, list[float]]]


def write_text(data: Path, language: str, count: int, prefix: Path) -> int:
    """Write a random part of the pairs, and return their number; larger parts contain smaller."""
    pairs = list(training_pairs(data, f"en-{language}", ("more",)))
    chosen = np.random.default_rng(1).permutation(len(pairs))[:count]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("en", language)):
        lines = "".join(f"{pairs[number][side]}\n" for number in chosen)
        Path(f"{prefix}.{name}").write_text(lines, encoding="utf-8")
    return len(chosen)


def scores(encoder: Encoder, data: Path, languages: list[str]) -> Scores:
    """Return P@1 of some languages on the sets that exist."""
    by_language: Scores = {}
    for language in languages:
        sets = eval_sets(data, f"en-{language}")
        by_language[language] = {}
        for name in MEASURED_SETS:
            if name in sets:
                by_language[language][name] = p_at_1(encoder, sets[name], language)
    return by_language


def p_at_1(encoder: Encoder, sides: Mapping[str, list[str]], language: str) -> list[float]:
    """Return P@1 in percent among the sentences of a set, from English and into English."""
    english = normalise_rows(encoder.embed(Text(sides["en"], "en")))
    foreign = normalise_rows(encoder.embed(Text(sides[language], language)))
    similarity = english @ foreign.T
    rows = np.arange(len(english))
    into_foreign = (similarity.argmax(axis=1) == rows).mean()
    into_english = (similarity.argmax(axis=0) == rows).mean()
    return [round(100 * float(value), 1) for value in (into_foreign, into_english)]


def train(args: argparse.Namespace, way: str, count: int, language: str) -> tuple[Path, int]:
    """Run `lxsr run`, and return the model folder and the number of pairs."""
    work = args.work.absolute() / f"{language}.{count}.{way}"
    pairs = write_text(args.data, language, count, work / "text")
    start = FROM_SCRATCH if way == "nothing" else (f"--{way}", args.model)
    options = (*start, *ONCE, "--cpu", "--num-workers", 1, *args.options.split())
    lxsr("run", work / "text", "--lang-pair", f"en-{language}", "--work", work, *options)
    return work / "model", pairs


def measured(args: argparse.Namespace, way: str, count: int, language: str) -> dict:
    """Train a model in one way, and return its row of the results."""
    model, pairs = train(args, way, count, language)
    row: dict = {"language": language, "asked": count, "pairs": pairs, "way": way}
    if way == "teacher":
        row["P@1"] = scores(load({"en": args.model, language: model}), args.data, [language])
        row["alone"] = scores(load(model), args.data, [language])
    elif way == "from":
        row["P@1"] = scores(load(model), args.data, [language, *OLD_LANGUAGES])
    else:
        row["P@1"] = scores(load(model), args.data, [language])
    return row


def parse_options() -> argparse.Namespace:
    parser = command_line(__doc__, required=True)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="text, as for quality.run"
    )
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="folder of text and models"
    )
    parser.add_argument(
        "--model", default="lxsr-static", help="model to start from (default: lxsr-static)"
    )
    parser.add_argument(
        "--new",
        nargs="+",
        default=["hu", "pl", "tr"],
        metavar="LANG",
        help="new languages (default: hu pl tr)",
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        type=int,
        default=[1000, 5000, 17_000, 50_000],
        metavar="N",
        help="numbers of pairs (default: 1000 5000 17000 50000)",
    )
    parser.add_argument(
        "--ways",
        nargs="+",
        default=list(WAYS),
        choices=WAYS,
        help="ways to train (default: from teacher nothing)",
    )
    parser.add_argument(
        "--options", default="", metavar="OPTIONS", help="further options of every training"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_options()
    result: dict = {
        "machine": machine(),
        "commit": commit(),
        "model": args.model,
        "before": scores(load(args.model), args.data, [*OLD_LANGUAGES, *args.new]),
        "rows": [],
    }
    if args.output.is_file():
        # The rows of an earlier run are not measured again.
        result["rows"] = json.loads(args.output.read_text())["rows"]
    done = {(row["way"], row["asked"], row["language"]) for row in result["rows"]}
    for way in args.ways:
        for count in args.pairs:
            for language in args.new:
                if (way, count, language) in done:
                    continue
                done.add((way, count, language))
                row = measured(args, way, count, language)
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
                # After each row, in case the run is interrupted.
                write_results(args.output, result)


if __name__ == "__main__":
    main()
