"""`lxsr embed`: text in, embeddings out."""

import argparse

from fairseq_lxsr.cli.models import add_model_options, load_encoder
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.export import write_npy
from fairseq_lxsr.files import read_lines


def add_parser(verbs) -> None:
    parser = verbs.add_parser("embed", help="embed the sentences of a file", description=__doc__)
    add_model_options(parser)
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help="UTF-8 text, one sentence a line, .gz or not; - for standard input",
    )
    parser.add_argument("--output", required=True, metavar="FILE.npy", help="float32 [sentences, width], numpy format")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    encoder = load_encoder(args.model, args)
    sentences = list(read_lines(args.input))
    if not sentences:
        raise InputError(f"{args.input}: empty file; expected one sentence a line")
    embeddings = encoder.encode(sentences, batch_size=args.batch_size, show_progress_bar=True)
    write_npy(args.output, embeddings)
    print(f"{args.output}: {len(embeddings):,} embeddings of width {encoder.embed_dim}, model {encoder.fingerprint}")
