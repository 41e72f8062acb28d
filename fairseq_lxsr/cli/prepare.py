"""Corpus preparation: `lxsr corpus`, `lxsr subwords` and `lxsr binarise` are its stages, `lxsr prepare` runs all."""

import argparse
from pathlib import Path

from fairseq_lxsr.errors import InputError
from preprocess.binarise import binarise
from preprocess.corpus import make_corpus
from preprocess.gettext_harvest import LOCALE_FOLDERS
from preprocess.subwords import train_subwords

Pair = tuple[str, str]


def add_parser(verbs) -> None:
    stages = {
        "corpus": ("clean, split text of each language pair", run_corpus, [corpus_options]),
        "subwords": ("SentencePiece model and dictionary", run_subwords, [subword_options]),
        "binarise": ("pieces and fairseq-preprocess", run_binarise, [binarise_options]),
        "prepare": (
            "all of corpus, subwords and binarise",
            run_prepare,
            [corpus_options, subword_options, binarise_options],
        ),
    }
    for name, (help_text, run, options) in stages.items():
        parser = verbs.add_parser(
            name, help=help_text, description=f"{help_text}. A stage is skipped while its inputs have not changed."
        )
        parser.add_argument(
            "--work",
            type=Path,
            default=Path("work"),
            metavar="FOLDER",
            help="holds corpus/SRC-TGT, subwords and data-bin (default: work)",
        )
        parser.add_argument(
            "--lang-pairs",
            default="en-fr",
            type=language_pairs,
            metavar="PAIRS",
            help="for example en-fr or en-fr,en-de (default: en-fr)",
        )
        for add in options:
            add(parser)
        parser.set_defaults(run=run)


def corpus_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="PREFIX",
        help="own aligned text, PREFIX.SRC and PREFIX.TGT (.gz too), or one FILE.tsv; {pair} in it stands for "
        "SRC-TGT (default: harvest the gettext catalogues of this machine)",
    )
    parser.add_argument(
        "--locale-dir",
        type=Path,
        action="append",
        metavar="FOLDER",
        help=f"where gettext catalogues lie, may be repeated (default: {', '.join(map(str, LOCALE_FOLDERS))})",
    )
    parser.add_argument(
        "--valid-size", type=int, default=1000, metavar="N", help="pairs held out for validation (default: 1000)"
    )
    parser.add_argument(
        "--test-size", type=int, default=2000, metavar="N", help="pairs held out for testing (default: 2000)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the shuffle before splitting (default: 1)")


def subword_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=16000,
        metavar="N",
        help="entries of the joint dictionary, specials included (default: 16000; the paper: 50000)",
    )
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="lower-case all text, here and later when encoding",
    )
    parser.add_argument(
        "--character-coverage",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of characters that get a piece (default: 1.0; 0.9995 for scripts of thousands of characters)",
    )


def binarise_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="processes of fairseq-preprocess (default: 2)"
    )


def language_pairs(text: str) -> list[Pair]:
    pairs = [tuple(name.strip().split("-")) for name in text.split(",")]
    for pair in pairs:
        if len(pair) != 2 or not all(pair) or pair[0] == pair[1]:
            raise argparse.ArgumentTypeError(f"{'-'.join(pair)!r}; expected SRC-TGT, for example en-fr")
    return pairs  # type: ignore[return-value]


def corpus_folders(args: argparse.Namespace) -> dict[Pair, Path]:
    return {pair: args.work / "corpus" / "-".join(pair) for pair in args.lang_pairs}


def run_corpus(args: argparse.Namespace) -> None:
    if args.valid_size < 1 or args.test_size < 1:
        raise InputError(f"--valid-size {args.valid_size}, --test-size {args.test_size}; expected 1 or more")
    if args.data and len(args.lang_pairs) > 1 and "{pair}" not in args.data:
        raise InputError(
            f"--data {args.data}: expected {{pair}} in it, there are {len(args.lang_pairs)} language pairs"
        )
    for pair, folder in corpus_folders(args).items():
        data = args.data and args.data.replace("{pair}", "-".join(pair))
        locale = tuple(args.locale_dir or LOCALE_FOLDERS)
        make_corpus(folder, *pair, data, locale, args.valid_size, args.test_size, args.seed)


def run_subwords(args: argparse.Namespace) -> None:
    corpora = list(corpus_folders(args).values())
    for corpus in corpora:
        if not corpus.is_dir():
            raise InputError(f"{corpus}: no such folder; run `lxsr corpus` first")
    train_subwords(args.work / "subwords", corpora, args.vocab_size, args.lowercase, args.character_coverage)


def run_binarise(args: argparse.Namespace) -> None:
    binarise(args.work / "data-bin", corpus_folders(args), args.work / "subwords", args.workers)


def run_prepare(args: argparse.Namespace) -> None:
    run_corpus(args)
    run_subwords(args)
    run_binarise(args)
