"""`lxsr corpus`: list public parallel corpora, and download one of them."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.languages import split_pair
from fairseq_lxsr.ranges import file_path

if TYPE_CHECKING:
    from fairseq_lxsr.preparation.sources import Corpus

# the registry and the downloads need numpy and tqdm, so they are imported only when a verb runs


def add_parser(verbs) -> None:
    parser = verbs.add_parser("corpus", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the corpora there are")
    listing.add_argument("--lang-pair", metavar="SRC-TGT", help="only those of this pair")
    listing.set_defaults(run=run_list)
    showing = actions.add_parser("show", help="all about one")
    showing.add_argument("name")
    showing.set_defaults(run=run_show)
    getting = actions.add_parser("get", help="download and unpack one; an interrupted download goes on where it was")
    getting.add_argument("name")
    getting.add_argument("--lang-pair", required=True, metavar="SRC-TGT")
    getting.add_argument(
        "--output", type=file_path, default=Path("text"), metavar="FOLDER", help="where the text goes (default: text)"
    )
    getting.add_argument("--keep-archive", action="store_true", help="do not remove the archive after unpacking")
    getting.set_defaults(run=run_get)


def run_list(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.sources import registry

    pair = args.lang_pair and split_pair(args.lang_pair)
    for corpus in registry().values():
        if not pair or corpus.has(*pair):
            languages = f"{len(corpus.languages)} languages" if corpus.languages else "local"
            partner = f" with {corpus.partner}" if corpus.partner else ""
            print(f"{corpus.name:20} {languages + partner:22} {corpus.format:13} {corpus.about}")


def run_show(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.sources import find_corpus, registry

    corpus = registry().get(args.name) or find_corpus(args.name, "en", "fr")
    for name, value in describe(corpus).items():
        print(f"{name:10} {value}")


def describe(corpus: "Corpus") -> dict[str, str]:
    partner = f", each with {corpus.partner}" if corpus.partner else ", any two of them"
    return {
        "name": corpus.name,
        "about": corpus.about,
        "languages": f"{' '.join(corpus.languages)}{partner}" if corpus.languages else "any",
        "format": corpus.format,
        "address": corpus.url or "local",
        "licence": corpus.licence,
        "size": ", ".join(f"{pair} {size:,} bytes" for pair, size in corpus.size.items()) or "not published",
        "SHA-256": ", ".join(f"{pair} {value}" for pair, value in corpus.sha256.items()) or "not published",
    }


def run_get(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.sources import find_corpus, get_corpus

    source, target = split_pair(args.lang_pair)
    corpus = find_corpus(args.name, source, target)
    files = get_corpus(corpus, source, target, args.output, args.keep_archive)
    data = files[0] if len(files) == 1 else files[0].with_suffix("")
    pair = files[0].stem.rpartition(".")[2] if len(files) == 1 else args.lang_pair
    print(f"{', '.join(map(str, files))} (licence: {corpus.licence})")
    print(shlex.join(["lxsr", "prepare", "--lang-pairs", pair, "--data", str(data)]))
