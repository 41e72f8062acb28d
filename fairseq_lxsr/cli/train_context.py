"""`lxsr train-context`: embeddings without parallel text; both stages and all rounds, resumable."""

import argparse
import shlex
from pathlib import Path

from fairseq_lxsr.atomic import refuse_overlap
from fairseq_lxsr.configs import read_config
from fairseq_lxsr.ranges import file_path


def add_parser(verbs) -> None:
    parser = verbs.add_parser("train-context", description=__doc__)
    parser.add_argument("config", type=file_path, metavar="CONFIG.yaml", help="see examples/context")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    # torch and others take seconds to import
    from fairseq_lxsr.context.config import ContextConfig
    from fairseq_lxsr.context.rounds import RECORD, REPORT, Rounds, TrainingText
    from fairseq_lxsr.preparation.documents import prepare_documents

    config = read_config(args.config, ContextConfig)
    made = (RECORD, REPORT, "stage1", *(f"round{number + 1}" for number in range(config.rounds)))
    read = [args.config, *config.documents.values(), config.gold or None]
    refuse_overlap([Path(config.work) / name for name in made], read)
    model = Rounds(config, lambda: TrainingText(*prepare_documents(**config.text_options))).run()
    print(f"{model}: the model of the last round; lxsr embed --model {shlex.quote(str(model))} ...")
