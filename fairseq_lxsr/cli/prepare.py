"""Corpus preparation: `lxsr clean`, `lxsr subwords` and `lxsr binarise` are its stages, `lxsr prepare` runs all."""

import argparse
import shlex
from dataclasses import fields
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, file_path, read_yaml_config
from fairseq_lxsr.preparation.catalogues import LOCALE_FOLDERS
from fairseq_lxsr.preparation.clean import FILTERS
from fairseq_lxsr.preparation.config import (
    MODEL_TYPES,
    REPEATS,
    SOURCE_NAME,
    Cleaning,
    PrepareConfig,
    Sources,
    SubwordOptions,
    TextName,
)
from fairseq_lxsr.text.languages import split_pairs


def add_parser(verbs) -> None:
    stages = {
        "clean": ("read, clean and split text of each language pair", run_clean, [corpus_options]),
        "subwords": ("SentencePiece model and dictionary", run_subwords, [subword_options]),
        "binarise": ("the files that fairseq-train reads", run_binarise, [binarise_options]),
        "prepare": (
            "all of clean, subwords and binarise",
            run_prepare,
            [config_option, corpus_options, subword_options, binarise_options],
        ),
    }
    for name, (help_text, run, options) in stages.items():
        parser = verbs.add_parser(
            name, description=f"{help_text}. A stage is skipped while its inputs have not changed."
        )
        parser.add_argument(
            "--work",
            default=PrepareConfig.work,
            type=FILE_NAME,
            metavar="FOLDER",
            help="holds corpus/SRC-TGT, subwords and data-bin (default: work)",
        )
        parser.add_argument(
            "--lang-pairs",
            default=["en-fr"],
            type=language_pairs,
            metavar="PAIRS",
            help="for example en-fr or en-fr,en-de (default: en-fr)",
        )
        add_number(parser, PrepareConfig, "workers", "processes")
        for add in options:
            add(parser)
        parser.set_defaults(run=run)


def config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        type=file_path,
        metavar="CONFIG.yaml",
        help="all options in one file, see preprocess; only --locale-dir may stand beside it",
    )


def corpus_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=FILE_NAME,
        action="append",
        metavar="[NAME=]PREFIX",
        help="own text: PREFIX.SRC and PREFIX.TGT aligned, FILE.tsv, FILE.tmx, compressed or not, or a folder of "
        "gettext catalogues (.po, .mo); {pair} in it stands for SRC-TGT (default: the catalogues of this machine); "
        "repeated, with the NAME of the source (kind of text) of each, which --source-temperature of training balances",
    )
    parser.add_argument(
        "--locale-dir",
        type=file_path,
        action="append",
        metavar="FOLDER",
        help=f"folder of gettext catalogues, may be repeated (default: {', '.join(map(str, LOCALE_FOLDERS))})",
    )
    parser.add_argument(
        "--filters",
        metavar="NAMES",
        help=f"drop pairs by some of {', '.join(FILTERS)}, in this order; a CONFIG.yaml can set their options "
        "(default: length,ratio,letters,identical for catalogues, none for own text)",
    )
    parser.add_argument(
        "--repeats",
        choices=REPEATS,
        help="what is dropped as a duplicate: a pair, or a sentence of either side (default: side for catalogues, "
        "pair for own text)",
    )
    parser.add_argument(
        "--exclude",
        nargs="+",
        type=FILE_NAME,
        default=[],
        metavar="FILE",
        help="evaluation text; no pair with one of its sentences is used",
    )
    parser.add_argument("--keep-dropped", action="store_true", help="write dropped pairs and why to dropped.tsv.gz")
    add_number(parser, PrepareConfig, "valid_size", "pairs held out for validation")
    add_number(parser, PrepareConfig, "test_size", "pairs held out for testing; 0: none")
    add_number(parser, PrepareConfig, "seed", "of the draw of held-out pairs")


def subword_options(parser: argparse.ArgumentParser) -> None:
    help_text = "entries of the joint dictionary, specials included; the paper: 50000"
    add_number(parser, SubwordOptions, "vocab_size", help_text)
    parser.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="lower-case all text, here and later when encoding (default: yes; --no-lowercase keeps capitals)",
    )
    help_text = "share of characters that get a piece; 0.9995 for scripts of thousands of characters"
    add_number(parser, SubwordOptions, "character_coverage", help_text)
    parser.add_argument("--model-type", choices=MODEL_TYPES, default="bpe", help="default: bpe")
    parser.add_argument("--byte-fallback", action="store_true", help="unknown characters as bytes instead of <unk>")


def binarise_options(parser: argparse.ArgumentParser) -> None:
    help_text = "parts of the training data, data-bin/0 to N-1, for corpora larger than the memory"
    add_number(parser, PrepareConfig, "shards", help_text)


def add_number(parser: argparse.ArgumentParser, kind: type, name: str, help_text: str) -> None:
    """Add an option whose default and range are those of a dataclass field."""
    item = next(item for item in fields(kind) if item.name == name)
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        type=item.metadata["range"],
        default=item.default,
        metavar="N",
        help=f"{help_text} (default: {item.default})",
    )


def language_pairs(text: str) -> list[str]:
    try:
        return ["-".join(pair) for pair in split_pairs(text)]
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def config_of(args: argparse.Namespace) -> PrepareConfig:
    """Make the configuration from the options of a command line; options that the verb lacks keep their defaults."""
    given = vars(args)
    if given.get("config"):
        others = [word for word in args.command_line if word.startswith("--") and not word.startswith("--loc")]
        if others:
            raise InputError(f"{others[0]} beside {args.config}; expected it in the file")
        return read_yaml_config(args.config, PrepareConfig)
    cleaning = {"exclude": tuple(given.get("exclude", ())), "keep_dropped": given.get("keep_dropped", False)}
    if given.get("filters") is not None:
        cleaning["filters"] = {name: {} for name in args.filters.split(",") if name}
    subwords = {
        name: given[name]
        for name in ("vocab_size", "lowercase", "character_coverage", "model_type", "byte_fallback")
        if name in given
    }
    sizes = {name: given[name] for name in ("valid_size", "test_size", "seed", "workers", "shards") if name in given}
    return PrepareConfig(
        texts_of(given.get("data") or [], args.lang_pairs),
        args.work,
        Cleaning(repeats=given.get("repeats"), **cleaning),
        SubwordOptions(**subwords),
        **sizes,
    )


def texts_of(data: list[str], pairs: list[str]) -> dict[str, TextName | Sources]:
    """Return the text of each language pair: that of `--data`, by the name of each source where names are given."""
    for text in data:
        if len(pairs) > 1 and "{pair}" not in text:
            raise InputError(f"--data {text}: expected {{pair}} in it, there are {len(pairs)} language pairs")
    named: dict[str, list[str]] = {}
    for text in data:
        name, equals, prefix = text.partition("=")
        if equals and SOURCE_NAME.fullmatch(name):
            named.setdefault(name, []).append(prefix)
        elif len(data) > 1:
            raise InputError(f"--data {text}: no name; expected --data NAME=PREFIX for each of {len(data)} texts")
    if not named:
        return {pair: text.replace("{pair}", pair) for pair in pairs for text in data} or dict.fromkeys(pairs)
    return {
        pair: {name: tuple(text.replace("{pair}", pair) for text in texts) for name, texts in named.items()}
        for pair in pairs
    }


# a stage imports what it needs when it runs, because numpy, SentencePiece and others take seconds


def run_clean(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation import pipeline

    pipeline.clean(config_of(args), locale_folders(args))


def run_subwords(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation import pipeline

    pipeline.subwords(config_of(args))


def run_binarise(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation import pipeline

    pipeline.binarise_corpora(config_of(args))


def run_prepare(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation import pipeline

    config = config_of(args)
    refuse_overlap([Path(config.work) / pipeline.SUMMARY_FILE], [args.config])
    done = pipeline.prepare(config, locale_folders(args))
    data, save_dir = ":".join(map(str, done.data)), str(Path(config.work) / "checkpoints")
    by_recipe = shlex.join(["lxsr", "train", data, "--recipe", "best", "--save-dir", save_dir])
    pairs = ("--task", "xling_sent", "--lang-pairs", ",".join(config.pairs))
    by_options = shlex.join(["fairseq-train", data, "--user-dir", str(PACKAGE), *pairs])
    print(
        f"{done.pairs:,} pairs to train on, at most {done.unknown} % of a text unknown; all inputs, hashes and counts "
        f"are in {done.summary}\nto train: {by_recipe}\nwith options of your own: {by_options} ..."
    )


def locale_folders(args: argparse.Namespace) -> tuple[Path, ...]:
    return tuple(args.locale_dir or LOCALE_FOLDERS)
