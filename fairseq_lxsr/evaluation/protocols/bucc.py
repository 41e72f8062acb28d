"""Mining of translations that are hidden in two texts."""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import chain, product, starmap
from typing import TYPE_CHECKING

from fairseq_lxsr.atomic import atomic_write
from fairseq_lxsr.choices import BUCC_FORMS, BUCC_PARTS, MARGINS, RETRIEVALS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.options import language_pairs, search_options, search_settings
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol
from fairseq_lxsr.ranges import FILE_NAME, at_least

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.bucc import MiningSet
    from fairseq_lxsr.evaluation.score import Score
    from fairseq_lxsr.retrieval import MinedPairs

OF_MINING = ("k", "margin", "retrieval", "unify", "pairs_output")  # options that mteb's forms have no use for


class Bucc(Protocol):
    """`evaluation.bucc` on the files of BUCC."""

    name, help = "bucc", "mining of hidden translations, F1, in the forms that are reported"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--data",
            required=True,
            type=FILE_NAME,
            metavar="TEMPLATE",
            help="for example bucc2018/{pair}/{pair}: .training.fr and so on",
        )
        parser.add_argument("--lang-pairs", required=True, metavar="PAIRS", help="for example fr-en,de-en")
        parser.add_argument(
            "--form",
            choices=BUCC_FORMS,
            default="learned",
            help="learned: the threshold of --learn-part is applied to --part, as in the shared task; oracle: the "
            "threshold is chosen on --part itself, an upper bound; mteb-v2, mteb-v1: weighted F1 of the nearest "
            "neighbours of the gold's sentences, without a threshold, as mteb's BUCC.v2 and BUCC (default: learned)",
        )
        parser.add_argument(
            "--part", choices=BUCC_PARTS, help="that is measured (default: test; training where nothing is learned)"
        )
        parser.add_argument("--learn-part", choices=BUCC_PARTS, help="of --form learned (default: training)")
        parser.add_argument("--k", type=at_least(1), metavar="N", help="size of the neighbourhoods (default: 4)")
        parser.add_argument("--margin", choices=MARGINS, help="default: ratio")
        parser.add_argument("--retrieval", choices=RETRIEVALS, help="default: max")
        parser.add_argument(
            "--unify",
            action="store_true",
            help="mine each distinct sentence once and count no pair of a repeated one, as LASER's code",
        )
        parser.add_argument(
            "--pairs-output", type=FILE_NAME, metavar="FILE.tsv", help="write the mined pairs of a single language pair"
        )
        search_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation import bucc

        pairs = ["-".join(pair) for pair in language_pairs(args.lang_pairs)]
        if args.pairs_output and len(pairs) > 1:
            raise InputError(f"--pairs-output with {len(pairs)} language pairs; expected one")
        parts = parts_of(args)
        texts = chain.from_iterable(starmap(partial(bucc.find_files, args.data), product(pairs, parts)))

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            for pair in pairs:
                sets = [bucc.read_set(args.data, pair, part) for part in parts]
                yield [self.score(sets, encoder, args)]

        return Plan(measure, list(texts), [args.pairs_output] if args.pairs_output else [])

    def score(self, sets: "list[MiningSet]", encoder: "Encoder", args: argparse.Namespace) -> "Score":
        """Measure one language pair in the form that was asked for."""
        from fairseq_lxsr.evaluation import bucc

        *learned, measured = sets
        search = search_settings(args)
        if args.form.startswith("mteb"):
            return bucc.evaluate_mteb(measured, encoder, args.form, **search)
        given = {name: getattr(args, name) for name in ("k", "margin", "retrieval", "unify")}
        mining = bucc.Mining(**{name: value for name, value in given.items() if value is not None})
        if learned:
            score, mined = bucc.evaluate(learned[0], measured, encoder, mining, **search)
        else:
            score, mined = bucc.evaluate_oracle(measured, encoder, mining, **search)
        if args.pairs_output:
            write_pairs(args.pairs_output, measured, mined)
        return score


def parts_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The parts that a form reads; the last is measured.

    Raises:
        InputError: for options that another form has.
    """
    if args.form.startswith("mteb"):
        for name in OF_MINING:
            if getattr(args, name):
                raise InputError(f"--{name.replace('_', '-')} with --form {args.form}, which mines nothing")
    if args.form != "learned":
        if args.learn_part:
            raise InputError(f"--learn-part with --form {args.form}, which learns nothing; expected --form learned")
        return (args.part or "training",)
    parts = (args.learn_part or "training", args.part or "test")
    if parts[0] == parts[1]:
        raise InputError(f"--learn-part and --part are both {parts[0]}; expected two, or --form oracle")
    return parts


def write_pairs(path: str, test: "MiningSet", mined: "MinedPairs") -> None:
    """Write the mined pairs with the ids of their sentences, best first."""
    with atomic_write(path) as stream:
        for score, i, j in zip(mined.scores.tolist(), mined.source.tolist(), mined.target.tolist(), strict=True):
            stream.write(f"{score:.6f}\t{test.source_ids[i]}\t{test.target_ids[j]}\n")


PROTOCOL = Bucc()
