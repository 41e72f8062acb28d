"""`lxsr compare`: two files of scores, value by value, with confidence intervals."""

import argparse
import sys

from fairseq_lxsr.choices import DRAWS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.ranges import FILE_NAME, at_least


def add_parser(verbs) -> None:
    parser = verbs.add_parser("compare", description=__doc__)
    parser.add_argument("first", type=FILE_NAME, metavar="A.jsonl", help="file of `lxsr eval --output`")
    parser.add_argument("second", type=FILE_NAME, metavar="B.jsonl", help="another; differences are B - A")
    parser.add_argument(
        "--draws", type=at_least(100), default=DRAWS, metavar="N", help=f"of the bootstrap (default: {DRAWS})"
    )
    parser.add_argument("--published", action="store_true", help="show scores from papers as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation.compare import SEED, compare, latest
    from fairseq_lxsr.evaluation.published import published_table
    from fairseq_lxsr.evaluation.score import read_scores

    first, second = read_scores(args.first), read_scores(args.second)
    results, notes = compare(first, second, args.draws)
    for note in notes:
        print(f"lxsr: {note}", file=sys.stderr)
    if not results:
        raise InputError(f"{args.first} and {args.second} have no score that was measured alike; evaluate both again")
    names = [f"{r.protocol} {r.task} {r.value} {r.metric}" for r in results]
    width = max(map(len, names))
    print(f"{'':{width}}{'A':>8}{'B':>8}{'B - A':>8}   95 % interval        p")
    for name, r in zip(names, results, strict=True):
        interval = f"[{r.low:+.1f}, {r.high:+.1f}]"
        print(f"{name:{width}}{r.first:8.1f}{r.second:8.1f}{r.difference:+8.1f}   {interval:16}{r.p:8.3f}")
    models = (
        " ".join(dict.fromkeys(str(score.settings.get("model")) for score in latest(scores).values()))
        for scores in (first, second)
    )
    print("A: model {}, B: model {}".format(*models))
    print(f"paired bootstrap|draws:{args.draws}|seed:{SEED}")
    if args.published:
        print("\n" + published_table([result.protocol for result in results]))
