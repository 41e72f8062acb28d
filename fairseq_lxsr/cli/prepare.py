"""`lxsr prepare`: turn raw text into input for fairseq-train, in stages.

A stage is skipped if neither its input nor its options have changed.
"""

import argparse
import os
import shlex
from pathlib import Path

from fairseq_lxsr.cli.options import add_options, filled
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.open import PACKAGE
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import FILE_NAME, file_path, read_yaml_config
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


def add_parser(verbs) -> None:
    parser = verbs.add_parser("prepare", description=__doc__)
    parser.add_argument(
        "config",
        nargs="?",
        type=file_path,
        metavar="CONFIG.yaml",
        help="YAML file that sets all options; it can be combined only with --until",
    )
    parser.add_argument(
        "--lang-pairs",
        default=["en-fr"],
        type=parse_pairs,
        metavar="PAIRS",
        help="language pairs, for example en-fr or en-fr,en-de (default: en-fr)",
    )
    parser.add_argument(
        "--data",
        type=FILE_NAME,
        action="append",
        default=[],
        metavar="[NAME=]PREFIX",
        help="your text: aligned files PREFIX.SRC and PREFIX.TGT, a file .tsv, .csv, .tmx, .xliff, "
        ".jsonl or .po, compressed or not, a .zip with these, or a folder of gettext catalogues; "
        "{pair} stands for SRC-TGT (default: the catalogues of this machine). Repeat it with a "
        "NAME for each source (kind of text); --source-temperature balances sources in training",
    )
    parser.add_argument(
        "--until",
        choices=("clean", "subwords"),
        help="stop after this stage: clean reads, cleans and splits the text; subwords also learns "
        "the SentencePiece model and the dictionary",
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
    """Read the configuration from the file, or from the command-line options."""
    if args.config:
        for word in args.command_line:
            name = word.partition("=")[0]
            # argparse accepts abbreviated option names.
            if name.startswith("--") and not "--until".startswith(name):
                raise InputError(
                    f"{word} cannot be combined with {args.config}; set it in the file"
                )
        return read_yaml_config(args.config, PrepareConfig)
    parts = {"cleaning": filled(Cleaning, args), "subwords": filled(SubwordOptions, args)}
    return filled(PrepareConfig, args, pairs=texts_of(args.data, args.lang_pairs), **parts)


def texts_of(data: list[str], pairs: list[str]) -> dict[str, TextName | Sources]:
    """Return the text of each language pair, grouped by source if --data names sources."""
    if len(pairs) > 1:
        for text in data:
            check_languages(text, len(pairs))
    if not data:
        return dict.fromkeys(pairs)
    sources = named_sources(data)
    texts: dict[str, TextName | Sources] = {}
    for pair in pairs:
        if sources:
            texts[pair] = {name: _filled_in(sources[name], pair) for name in sources}
        else:
            texts[pair] = data[0].replace("{pair}", pair)
    return texts


def named_sources(data: list[str]) -> dict[str, list[str]]:
    """Return the prefixes of each source, or {} if --data is a single text without a name."""
    sources: dict[str, list[str]] = {}
    for text in data:
        name, equals, prefix = text.partition("=")
        if equals and SOURCE_NAME.fullmatch(name):
            sources.setdefault(name, []).append(prefix)
        elif len(data) > 1:
            raise InputError(
                f"--data {text} has no name; specify --data NAME=PREFIX for each of the "
                f"{len(data)} texts"
            )
    return sources


def _filled_in(prefixes: list[str], pair: str) -> tuple[str, ...]:
    return tuple(prefix.replace("{pair}", pair) for prefix in prefixes)


def check_languages(text: str, num_pairs: int) -> None:
    """Raise an error if several language pairs would use text that has only one of them."""
    if "{pair}" not in text and not holds_languages(text.rpartition("=")[2]):
        raise InputError(
            f"--data {text} must contain {{pair}}, because there are {num_pairs} language pairs "
            "and it names the text of only one"
        )


def run_prepare(args: argparse.Namespace) -> None:
    # Imported here because it imports slow packages such as numpy and SentencePiece.
    from fairseq_lxsr.preparation import pipeline

    config = config_of(args)
    refuse_overlap([Path(config.work) / pipeline.SUMMARY_FILE], [args.config])
    done = pipeline.prepare_corpora(config, args.until)
    if done is None:
        return
    data = os.pathsep.join(map(str, done.data))
    recipe = ["--recipe", "best"]
    if config.subwords.from_model:
        recipe = ["--from", config.subwords.from_model]
    validation = []
    if config.valid_size == 0:
        validation = ["--disable-validation"]
    save_dir = str(Path(config.work) / "checkpoints")
    by_recipe = ["lxsr", "train", data, *recipe, *validation, "--save-dir", save_dir]
    task = ["--task", "xling_sent", "--lang-pairs", ",".join(config.pairs)]
    by_options = ["fairseq-train", data, "--user-dir", str(PACKAGE), *task, *validation]
    print(
        f"{done.pairs:,} training pairs, at most {done.unknown} % of a text unknown; "
        f"{done.summary} lists all inputs, hashes and counts\n"
        f"to train: {shlex.join(by_recipe)}\n"
        f"with your own options: {shlex.join(by_options)} ..."
    )
