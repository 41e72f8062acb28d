"""What `lxsr run` finds in a language that a model lacks: by --from MODEL, by --teacher MODEL, and
from nothing.

python -m benchmarks.quality.add_language --data DIR --work FOLDER --output
benchmarks/quality/results/add_language.json

Pairs with English are drawn from all text of DIR/more; 85 to 94 % of those that a run is given are
trained on, the rest is held out. P@1 of Tatoeba in the new language, among the set itself, and of
public sets in languages of the model. The trained model encodes English; after --teacher MODEL does
so for `P@1`, and the trained model for `alone`.
"""

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

OLD = ("fr", "de", "es", "it")  # languages whose sets are measured before and after
KEPT = ("Tatoeba", "PUD")
FROM_NOTHING = ("--encoder-embed-dim", 256)
ONCE = ("--save-interval", 10_000, "--validate-interval", 10_000)  # at the end alone, for time


def write_text(data: Path, language: str, count: int, prefix: Path) -> int:
    """Write a random part of the pairs, of which the larger has the smaller; returns how many there
    are.
    """
    pairs = list(training_pairs(data, f"en-{language}", ("more",)))
    chosen = np.random.default_rng(1).permutation(len(pairs))[:count]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("en", language)):
        lines = "".join(f"{pairs[number][side]}\n" for number in chosen)
        Path(f"{prefix}.{name}").write_text(lines, encoding="utf-8")
    return len(chosen)


def scores(encoder: Encoder, data: Path, languages: list[str]) -> dict[str, dict[str, list[float]]]:
    """P@1 in percent by language and set: from English, into English."""
    found: dict[str, dict[str, list[float]]] = {}
    for language in languages:
        sets = eval_sets(data, f"en-{language}")
        found[language] = {
            name: p_at_1(encoder, sets[name], language) for name in KEPT if name in sets
        }
    return found


def p_at_1(encoder: Encoder, sides: Mapping[str, list[str]], language: str) -> list[float]:
    """P@1 in percent of a set among itself, from English and into English."""
    source, target = (
        normalise_rows(encoder.embed(Text(sides[name], name))) for name in ("en", language)
    )
    similarity, right = source @ target.T, np.arange(len(source))
    return [round(100 * float((similarity.argmax(axis) == right).mean()), 1) for axis in (1, 0)]


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="text, as `run` reads it"
    )
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made"
    )
    parser.add_argument(
        "--model", default="lxsr-static", help="to go on from (default: lxsr-static)"
    )
    parser.add_argument(
        "--new", nargs="+", default=["hu", "pl", "tr"], metavar="LANG", help="default: hu pl tr"
    )
    parser.add_argument(
        "--pairs", nargs="+", type=int, default=[1000, 5000, 17_000, 50_000], metavar="N"
    )
    parser.add_argument(
        "--ways", nargs="+", default=["from", "teacher", "nothing"], help="default: all three"
    )
    parser.add_argument(
        "--options", default="", metavar="OPTIONS", help="more options of every training"
    )
    args = parser.parse_args()
    ways = {way: (f"--{way}", args.model) for way in ("from", "teacher")} | {
        "nothing": FROM_NOTHING
    }
    before = scores(load(args.model), args.data, [*OLD, *args.new])
    result: dict = {
        "machine": machine(),
        "commit": commit(),
        "model": args.model,
        "before": before,
        "rows": [],
    }
    if args.output.is_file():  # what an earlier call has measured
        result["rows"] = json.loads(args.output.read_text())["rows"]
    for way in args.ways:
        for count in args.pairs:
            for language in args.new:
                done = [(row["way"], row["asked"], row["language"]) for row in result["rows"]]
                if (way, count, language) in done:
                    continue
                work = args.work.absolute() / f"{language}.{count}.{way}"
                pairs = write_text(args.data, language, count, work / "text")
                words = (*ways[way], *ONCE, "--cpu", "--num-workers", 1, *args.options.split())
                lxsr("run", work / "text", "--lang-pair", f"en-{language}", "--work", work, *words)
                model = work / "model"
                encoder = load({"en": args.model, language: model} if way == "teacher" else model)
                about = {"language": language, "asked": count, "pairs": pairs, "way": way}
                languages = [language, *(OLD if way == "from" else ())]
                found = {"P@1": scores(encoder, args.data, languages)}
                found |= (
                    {"alone": scores(load(model), args.data, [language])}
                    if way == "teacher"
                    else {}
                )
                result["rows"].append(about | found)
                print(json.dumps(result["rows"][-1]), flush=True)
                write_results(args.output, result)  # as far as it is


if __name__ == "__main__":
    main()
