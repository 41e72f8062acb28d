"""`lxsr eval`: score an encoder by one of the field's protocols."""

import argparse
import json
from functools import partial

from fairseq_lxsr.cli.embed import add_model_options, load_encoder
from fairseq_lxsr.evaluation import xsr
from fairseq_lxsr.files import atomic_write, read_parallel


def add_parser(verbs) -> None:
    parser = verbs.add_parser("eval", help="score an encoder", description=__doc__)
    protocols = parser.add_subparsers(title="protocols", required=True, metavar="PROTOCOL")
    protocol = protocols.add_parser("xsr", help="sentence retrieval, P@1, P@5, P@10 both ways", description=xsr.__doc__)
    add_model_options(protocol)
    protocol.add_argument("--source", required=True, metavar="FILE", help="sentences, one a line")
    protocol.add_argument("--target", required=True, metavar="FILE", help="their translations, line by line")
    protocol.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of the shuffle that picks queries and candidates (default: 1)"
    )
    protocol.add_argument("--output", metavar="FILE.json", help="write the score here as well")
    protocol.set_defaults(run=run_xsr)


def run_xsr(args: argparse.Namespace) -> None:
    encoder = load_encoder(args)
    texts = xsr.select(read_parallel(args.source, args.target), args.seed)
    embed = partial(encoder.encode, batch_size=args.batch_size, show_progress_bar=True)
    fingerprint = encoder.fingerprint + ("-untrained" if args.untrained else "")
    score = xsr.evaluate(texts, embed, fingerprint, args.seed)
    print(f"{'':16}" + "".join(f"{f'P@{k}':>8}" for k in xsr.RANKS))
    for direction in ("source->target", "target->source"):
        print(f"{direction:16}" + "".join(f"{score.values[f'{direction} P@{k}']:8.1f}" for k in xsr.RANKS))
    print(score.signature)
    if args.output:
        with atomic_write(args.output) as stream:
            stream.write(json.dumps(score.as_dict(), indent=2) + "\n")
