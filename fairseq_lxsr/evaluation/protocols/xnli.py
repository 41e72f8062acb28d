"""Natural language inference across languages (Conneau et al. 2018)."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import XNLI_PRESETS
from fairseq_lxsr.evaluation.protocols.options import classifier_options, languages, with_options
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol
from fairseq_lxsr.ranges import FILE_NAME

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


class Xnli(Protocol):
    """`evaluation.xnli` on XNLI's files."""

    name, help = "xnli", "natural language inference across languages"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--data", required=True, type=FILE_NAME, metavar="FOLDER", help="the published files, or LANG.PART.tsv"
        )
        parser.add_argument(
            "--langs", required=True, type=languages, metavar="LANGS", help="tested, for example en,de,fr"
        )
        parser.add_argument("--train-lang", default="en", metavar="LANG", help="default: en")
        parser.add_argument("--preset", choices=XNLI_PRESETS, default="laser", help="default: laser")
        classifier_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation import xnli

        config = with_options(xnli.PRESETS[args.preset], args)
        texts = xnli.read_languages(args.data, args.train_lang, args.langs)

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            yield xnli.evaluate(texts, args.train_lang, encoder, args.preset, config, show_progress=True)

        return Plan(measure, [pairs.file for parts in texts.values() for pairs in parts.values()])


PROTOCOL = Xnli()
