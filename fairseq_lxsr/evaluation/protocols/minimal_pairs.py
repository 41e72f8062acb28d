"""Minimal pairs: English sentences and the same with another meaning."""

import argparse
from typing import TYPE_CHECKING

from fairseq_lxsr.atomic import atomic_write
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.protocols.aligned import AlignedProtocol
from fairseq_lxsr.evaluation.protocols.options import aligned_options, language_pairs
from fairseq_lxsr.evaluation.protocols.protocol import Plan
from fairseq_lxsr.ranges import FILE_NAME

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.evaluation.score import Score

ENGLISH = ("en", "eng", "eng_Latn")


class MinimalPairs(AlignedProtocol):
    """`evaluation.minimal_pairs` on aligned files of English and another language."""

    name, help = "minimal-pairs", "English with nouns swapped, negated or with another number: is the true one nearer"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        aligned_options(parser)
        parser.add_argument(
            "--pairs-output",
            type=FILE_NAME,
            metavar="FILE.tsv",
            help="write rule, translation, English and changed English",
        )

    def prepare(self, args: argparse.Namespace) -> Plan:
        for pair in language_pairs(args.lang_pairs) if args.lang_pairs else ():
            if not set(pair) & set(ENGLISH):
                raise InputError(f"--lang-pairs {'-'.join(pair)}: no English; the rules need {' or '.join(ENGLISH)}")
        plan = super().prepare(args)
        if not args.pairs_output:
            return plan
        if len(plan.texts) > 2:
            raise InputError(f"--pairs-output with {len(plan.texts) // 2} language pairs; expected one")
        return Plan(plan.measure, plan.texts, [args.pairs_output])

    def scores(self, source: "Text", target: "Text", encoder: "Encoder", args: argparse.Namespace) -> "list[Score]":
        from fairseq_lxsr.evaluation import minimal_pairs

        # without languages the source is English
        english, foreign = (target, source) if source.language and source.language not in ENGLISH else (source, target)
        score, pairs = minimal_pairs.evaluate(foreign, english, encoder)
        if args.pairs_output:
            with atomic_write(args.pairs_output) as stream:
                for rule, found in pairs.items():
                    for row, changed in zip(found.rows, found.sentences, strict=True):
                        columns = (rule, foreign.lines[row], english.lines[row], changed)
                        stream.write("\t".join(column.replace("\t", " ") for column in columns) + "\n")
        return [score]


PROTOCOL = MinimalPairs()
