"""`lxsr prepare`: from raw text to what fairseq-train reads, in stages that are skipped while
nothing has changed.
"""

import argparse
import shlex
from pathlib import Path

from fairseq_lxsr.cli.options import add_options, filled
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, file_path, read_yaml_config
from fairseq_lxsr.preparation.catalogues import LOCALE_FOLDERS
from fairseq_lxsr.preparation.config import (
    SOURCE_NAME,
    Cleaning,
    PrepareConfig,
    Sources,
    SubwordOptions,
    TextName,
)
from fairseq_lxsr.preparation.formats import holds_languages
from fairseq_lxsr.text.languages import split_pairs

BESIDE_A_FILE = ("--locale-dir", "--until")


def add_parser(verbs) -> None:
    parser = verbs.add_parser("prepare", description=__doc__)
    parser.add_argument(
        "config",
        nargs="?",
        type=file_path,
        metavar="CONFIG.yaml",
        help=f"all options in one file, see preprocess; only {' and '.join(BESIDE_A_FILE)} may stand beside it",
    )
    parser.add_argument(
        "--lang-pairs",
        default=["en-fr"],
        type=parse_pairs,
        metavar="PAIRS",
        help="for example en-fr or en-fr,en-de (default: en-fr)",
    )
    parser.add_argument(
        "--data",
        type=FILE_NAME,
        action="append",
        default=[],
        metavar="[NAME=]PREFIX",
        help="own text: PREFIX.SRC and PREFIX.TGT aligned, FILE.tsv, .csv, .tmx, .xliff, .jsonl, .po, packed or not, "
        "a .zip with these, or a folder of gettext catalogues; {pair} in it stands for SRC-TGT (default: the "
        "catalogues of this machine); repeated, with the NAME of the source (kind of text) of each, "
        "which --source-temperature of training balances",
    )
    parser.add_argument(
        "--locale-dir",
        type=file_path,
        action="append",
        metavar="FOLDER",
        help=f"folder of gettext catalogues, may be repeated (default: {', '.join(map(str, LOCALE_FOLDERS))})",
    )
    parser.add_argument(
        "--until",
        choices=("clean", "subwords"),
        help="stop after this stage: clean, text read, cleaned and split; subwords, SentencePiece model and dictionary",
    )
    for kind in (PrepareConfig, Cleaning, SubwordOptions):
        add_options(parser, kind)
    parser.set_defaults(run=run_prepare)


def parse_pairs(text: str) -> list[str]:
    try:
        return ["-".join(pair) for pair in split_pairs(text)]
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def config_of(args: argparse.Namespace) -> PrepareConfig:
    """Make the configuration from the file, or from the options of a command line."""
    if args.config:
        given = [word for word in args.command_line if word.startswith("--")]
        for word in given:
            if not any(option.startswith(word.partition("=")[0]) for option in BESIDE_A_FILE):
                raise InputError(f"{word} beside {args.config}; expected it in the file")
        return read_yaml_config(args.config, PrepareConfig)
    parts = {"cleaning": filled(Cleaning, args), "subwords": filled(SubwordOptions, args)}
    return filled(PrepareConfig, args, pairs=texts_of(args.data, args.lang_pairs), **parts)


def texts_of(data: list[str], pairs: list[str]) -> dict[str, TextName | Sources]:
    """Return the text of each language pair: that of `--data`, by the name of each source where
    names are given.
    """
    for text in data:
        if len(pairs) > 1 and "{pair}" not in text and not holds_languages(text.rpartition("=")[2]):
            raise InputError(
                f"--data {text}: expected {{pair}} in it, there are {len(pairs)} language pairs, and it holds one"
            )
    named: dict[str, list[str]] = {}
    for text in data:
        name, equals, prefix = text.partition("=")
        if equals and SOURCE_NAME.fullmatch(name):
            named.setdefault(name, []).append(prefix)
        elif len(data) > 1:
            raise InputError(
                f"--data {text}: no name; expected --data NAME=PREFIX for each of {len(data)} texts"
            )
    if not named:
        return {
            pair: text.replace("{pair}", pair) for pair in pairs for text in data
        } or dict.fromkeys(pairs)
    return {
        pair: {
            name: tuple(text.replace("{pair}", pair) for text in texts)
            for name, texts in named.items()
        }
        for pair in pairs
    }


def run_prepare(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation import pipeline  # numpy, SentencePiece and others take seconds

    config = config_of(args)
    refuse_overlap([Path(config.work) / pipeline.SUMMARY_FILE], [args.config])
    done = pipeline.prepare_corpora(config, tuple(args.locale_dir or LOCALE_FOLDERS), args.until)
    if done is None:
        return
    data, save_dir = ":".join(map(str, done.data)), str(Path(config.work) / "checkpoints")
    start = config.subwords.from_model
    how = ["--from", start] if start else ["--recipe", "best"]
    validation = ["--disable-validation"] if config.valid_size == 0 else []
    by_recipe = shlex.join(["lxsr", "train", data, *how, *validation, "--save-dir", save_dir])
    pairs = ("--task", "xling_sent", "--lang-pairs", ",".join(config.pairs))
    by_options = shlex.join(
        ["fairseq-train", data, "--user-dir", str(PACKAGE), *pairs, *validation]
    )
    print(
        f"{done.pairs:,} pairs to train on, at most {done.unknown} % of a text unknown; all inputs, hashes and counts "
        f"are in {done.summary}\nto train: {by_recipe}\nwith options of your own: {by_options} ..."
    )
