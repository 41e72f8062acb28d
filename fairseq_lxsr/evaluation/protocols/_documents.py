"""Classification of documents or titles, which two protocols share."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import CLASSIFIERS
from fairseq_lxsr.evaluation.protocols.options import classifier_options, languages, with_options
from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol
from fairseq_lxsr.ranges import FILE_NAME

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


class DocumentClassification(Protocol):
    """`evaluation.documents` on labelled text in several languages."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--data",
            required=True,
            type=FILE_NAME,
            metavar="FOLDER",
            help="LANG.train, LANG.dev, LANG.test (.tsv, .gz)",
        )
        parser.add_argument(
            "--langs", required=True, type=languages, metavar="LANGS", help="tested, for example en,de,fr"
        )
        parser.add_argument(
            "--train-langs", type=languages, metavar="LANGS", help="learnt in (default: all of --langs; en for en to X)"
        )
        parser.add_argument("--classifier", choices=CLASSIFIERS, default="mlp", help="default: mlp")
        classifier_options(parser)

    def prepare(self, args: argparse.Namespace) -> Plan:
        from fairseq_lxsr.evaluation import documents

        config = with_options(documents.PRESETS[self.name][args.classifier], args)
        learnt = args.train_langs or args.langs
        texts = documents.read_languages(args.data, learnt, args.langs)

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            options = {"show_progress": True, **self.text_options(args)}
            yield documents.evaluate(self.name, texts, learnt, encoder, config, **options)

        return Plan(measure, [found.text.file for parts in texts.values() for found in parts.values()])

    def text_options(self, args: argparse.Namespace) -> dict[str, bool]:
        """Options of `documents.evaluate` that change the text."""
        return {}
