"""What --model may name, for every verb that measures, mines or searches."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.choices import WORD_WEIGHTS
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.ranges import FILE_NAME, at_least
from fairseq_lxsr.stored import parse_json

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.evaluation.text import Encoder

ANY_MODEL = (
    "model folder of `lxsr export-model`; word vectors (.vec, .vec.gz); a folder of sentence-transformers or of a "
    "Hugging Face encoder; or a folder of embeddings, NAME.npy or LASER-raw NAME.raw for a text file NAME. Repeated "
    "as LANG=... for languages that have a model each"
)


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """How to encode."""
    parser.add_argument(
        "--batch-size", type=at_least(1), default=256, metavar="N", help="sentences encoded together (default: 256)"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """A model folder of ours."""
    parser.add_argument(
        "--model", required=True, type=FILE_NAME, metavar="FOLDER", help="model folder of `lxsr export-model`"
    )
    add_batch_options(parser)
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="random weights instead of the trained ones: the floor that training is measured against",
    )


def add_any_model_options(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Any encoder; `default` says what is taken where none is named."""
    parser.add_argument(
        "--model",
        required=not default,
        action="append",
        type=model_name,
        metavar="[LANG=]PATH",
        help=ANY_MODEL + (f" (default: {default})" if default else ""),
    )
    add_batch_options(parser)
    parser.add_argument("--untrained", action="store_true", help="of a model folder: random weights, the floor")
    parser.add_argument(
        "--word-weights", choices=WORD_WEIGHTS, default="mean", help="how word vectors make a sentence (default: mean)"
    )
    parser.add_argument(
        "--raw-dim", type=at_least(1), default=1024, metavar="N", help="width of LASER-raw embeddings (default: 1024)"
    )


def model_name(text: str) -> str:
    """A value of --model, as `type=` of argparse."""
    FILE_NAME(FILE_NAME(text).split("=", 1)[1] if _names_language(text) else text)
    return text


def check_batch_options(args: argparse.Namespace) -> None:
    import torch

    if args.device is not None:
        kind, _, number = args.device.partition(":")
        count = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(kind, 0)
        if not count or (":" in args.device and number not in map(str, range(count))):
            gpus = torch.cuda.device_count()
            there = f"cpu, or cuda:0 to cuda:{gpus - 1}" if gpus else "cpu, as torch finds no CUDA here"
            raise InputError(f"--device {args.device}; expected {there}")


def load_encoder(path: str, args: argparse.Namespace) -> "SentenceEncoder":
    """A model folder of ours."""
    from fairseq_lxsr.encoder import SentenceEncoder

    check_batch_options(args)
    return SentenceEncoder.from_pretrained(path, args.device, untrained=args.untrained)


def load_any(args: argparse.Namespace) -> "Encoder":
    """What --model names, once or for several languages."""
    from fairseq_lxsr.evaluation.encoders import ByLanguage

    check_batch_options(args)
    named = [spec.split("=", 1) for spec in args.model if _names_language(spec)]
    if not named and len(args.model) == 1:
        return _load(args.model[0], args)
    if len(named) != len(args.model):
        raise InputError(f"--model {' '.join(args.model)}; expected one, or LANG=PATH for each language")
    if len({language for language, _ in named}) != len(named):
        raise InputError(f"--model {' '.join(args.model)}; expected one for each language")
    return ByLanguage({language: _load(path, args) for language, path in named})


def model_files(specs: Iterable[str]) -> Iterator[Path]:
    """What is read of the models that --model names; a folder that is not ours for all that is in it."""
    from fairseq_lxsr.evaluation.encoders import is_stored
    from fairseq_lxsr.model_folder import FILES

    for spec in specs:
        path = Path(spec.split("=", 1)[1] if _names_language(spec) else spec)
        if is_stored(path):
            yield from (file for file in path.iterdir() if file.suffix in (".npy", ".raw", ".json"))
        elif path.is_dir() and _is_ours(path):
            yield from (path / name for name in FILES)
        else:
            yield path


def _names_language(spec: str) -> bool:
    return "=" in spec and not Path(spec).exists()


def _load(name: str, args: argparse.Namespace) -> "Encoder":
    from fairseq_lxsr.evaluation.encoders import (
        EncodeMethod,
        StoredEmbeddings,
        WordVectors,
        is_stored,
        sentence_transformers_folder,
    )

    path = Path(name)
    if path.is_file():
        return WordVectors(path, args.word_weights, show_progress=True)
    if is_stored(path):
        return StoredEmbeddings(path, args.raw_dim)
    if path.is_dir() and not _is_ours(path):
        return sentence_transformers_folder(path, args.batch_size, args.device, show_progress=True)
    encoder = load_encoder(name, args)
    fingerprint = encoder.fingerprint + ("-untrained" if args.untrained else "")
    return EncodeMethod(encoder, fingerprint, batch_size=args.batch_size, show_progress=True)


def _is_ours(folder: Path) -> bool:
    """Whether config.json is that of a model folder of ours (or none is there: then the error says what is missing)."""
    from fairseq_lxsr.model_folder import CONFIG_FILE

    if (folder / "modules.json").exists():
        return False
    try:
        return "model_type" not in parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
