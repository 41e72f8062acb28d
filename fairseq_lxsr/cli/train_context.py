"""`lxsr train-context`: embeddings without parallel text; both stages and all rounds, resumable."""

import argparse
import hashlib
import json
from functools import partial
from pathlib import Path

from fairseq_lxsr.context.config import ContextConfig
from fairseq_lxsr.context.rounds import Rounds, TrainingText
from fairseq_lxsr.errors import InputError
from preprocess.binarise import shard_folders
from preprocess.config import checked, read_yaml
from preprocess.documents import binarise_documents, make_documents
from preprocess.stages import MANIFEST, read_manifest
from preprocess.subwords import train_subwords


def add_parser(verbs) -> None:
    parser = verbs.add_parser("train-context", help="train without parallel text", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="see examples/context")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    config = read_config(args.config)
    model = Rounds(config, partial(prepare, config)).run()
    print(f"{model}: the model of the last round; lxsr embed --model {model} ...")


def prepare(config: ContextConfig) -> TrainingText:
    """Documents, pieces and the data folder, in the work folder; what is there of the same inputs is kept."""
    work, languages = Path(config.work), list(config.documents)
    sources = {language: Path(source) for language, source in config.documents.items()}
    documents, subwords, data = work / "documents", work / "subwords", work / "data-bin"
    make_documents(documents, sources, config.valid_documents, config.seed)
    train_subwords(subwords, [documents], config.vocab_size, config.lowercase, split_han=config.split_han)
    binarise_documents(data, documents, languages, subwords, config.workers, config.shards)
    manifest = read_manifest(data / MANIFEST)
    assert manifest is not None  # of the stage that was just there
    files = json.dumps(manifest["files"], sort_keys=True)
    return TrainingText(list(shard_folders(data)), documents, hashlib.sha256(files.encode()).hexdigest()[:12])


def read_config(path: Path) -> ContextConfig:
    """A YAML file with the fields of `ContextConfig`; file names in it are relative to the current folder."""
    content = read_yaml(path)
    try:
        return ContextConfig(**checked(content, ContextConfig, "the file"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
