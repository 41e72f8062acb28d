"""`lxsr train-context`: embeddings without parallel text; both stages and all rounds, resumable."""

import argparse
from pathlib import Path

from fairseq_lxsr.context.config import ContextConfig
from fairseq_lxsr.context.rounds import Rounds, TrainingText
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.config import checked, read_yaml
from fairseq_lxsr.preparation.documents import prepare_documents


def add_parser(verbs) -> None:
    parser = verbs.add_parser("train-context", help="train without parallel text", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="see examples/context")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    config = read_config(args.config)
    model = Rounds(config, lambda: TrainingText(*prepare_documents(**config.text_options))).run()
    print(f"{model}: the model of the last round; lxsr embed --model {model} ...")


def read_config(path: Path) -> ContextConfig:
    """A YAML file with the fields of `ContextConfig`; file names in it are relative to the current folder."""
    content = read_yaml(path)
    try:
        return ContextConfig(**checked(content, ContextConfig, "the file"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
