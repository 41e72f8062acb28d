"""The option --model and its values, for every verb that measures, mines or searches."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.records import parse_json
from fairseq_lxsr.machine import check_device
from fairseq_lxsr.options import FILE_NAME, WORD_WEIGHTS, Range, at_least

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fairseq_lxsr.cluster import Workers
    from fairseq_lxsr.cluster.workers import Load

Filled = TypeVar("Filled")


OUR_MODEL = (
    "model folder of `lxsr export folder`, or its name where it is one of this package, or the address of its archive, "
    "https://.../NAME.tar.gz#sha256=HEX"
)
ANY_MODEL = (
    f"{OUR_MODEL}; word vectors (.vec, .vec.gz); a folder of sentence-transformers or of a Hugging Face encoder; or a "
    "folder of embeddings, NAME.npy or LASER-raw NAME.raw for a text file NAME. Repeated as LANG=... for languages "
    "that have a model each"
)

ARCHIVE = b"PK\x03\x04"  # torch saves checkpoints as zip archives


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for each field of a dataclass that `option` declares: `--lang-pairs` for `lang_pairs`."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if not item.metadata.get("help") or item.metadata["only_in_files"]:
            continue
        how: dict[str, Any] = {"help": item.metadata["help"]}
        allowed = item.metadata.get("range")
        if hints[item.name] is bool:
            how["action"] = argparse.BooleanOptionalAction if item.default else "store_true"
        elif "choices" in item.metadata:
            how["choices"] = item.metadata["choices"]
        elif allowed is not None:
            how |= {"type": allowed, "metavar": "N"} if isinstance(allowed, Range) else {"type": allowed}
        if item.default is MISSING:
            how["required"] = True
        else:
            how["default"] = item.default
            if item.default not in (None, False, ()) and "default" not in how["help"]:
                how["help"] += f" (default: {item.default})"
        parser.add_argument(f"--{item.name.replace('_', '-')}", **how | item.metadata.get("how", {}))


def filled(kind: type[Filled], args: argparse.Namespace, **others: Any) -> Filled:
    """Fill a dataclass of `add_options` from a parsed command line; `others` are fields that are no options of it."""
    given = {item.name: getattr(args, item.name) for item in fields(kind) if item.name in args}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()} | others)


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of encoding."""
    parser.add_argument(
        "--batch-size", type=at_least(1), default=256, metavar="N", help="sentences encoded together (default: 256)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu or cuda (default: cuda for a model with layers, where there is one)"
    )


def add_any_model_options(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --model for any encoder; `default` says in the help what is taken without it."""
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
        "--word-weights",
        choices=WORD_WEIGHTS,
        default="mean",
        help="how word vectors make a sentence; idf, counted in the text, is for `lxsr eval` and `lxsr report` "
        "(default: mean)",
    )
    parser.add_argument(
        "--raw-dim", type=at_least(1), default=1024, metavar="N", help="width of LASER-raw embeddings (default: 1024)"
    )


def model_name(text: str) -> str:
    """Check a value of --model, as `type=` of argparse."""
    FILE_NAME(FILE_NAME(text).split("=", 1)[1] if _names_language(text) else text)
    return text


def load_any(args: argparse.Namespace, **options: Any) -> "Encoder":
    """Load the encoder that --model names, once or for several languages.

    Args:
        args: options of the command line.
        options: options of `SentenceEncoder.encode`, for our model folders.
    """
    from fairseq_lxsr.embeddings import ByLanguage

    check_device(args.device, "--device")
    named = [spec.split("=", 1) for spec in args.model if _names_language(spec)]
    if len(named) != len(args.model) and len(args.model) > 1:
        raise InputError(f"--model {' '.join(args.model)}; expected one, or LANG=PATH for each language")
    if len({language for language, _ in named}) != len(named):
        raise InputError(f"--model {' '.join(args.model)}; expected one for each language")
    check_language(args)
    if not named:
        return _load(args.model[0], args, options)
    return ByLanguage({language: _load(path, args, options) for language, path in named})


def names_languages(args: argparse.Namespace) -> bool:
    """Return whether --model names the languages of its models, so that vectors depend on --lang."""
    return any(map(_names_language, args.model))


def check_language(args: argparse.Namespace) -> None:
    """Check that the languages of the text are given where --model names languages, and --lang only there."""
    named = [spec.partition("=")[0] for spec in args.model if _names_language(spec)]
    models = " ".join(args.model)
    for option, is_used, example in (
        ("lang", True, named[:1]),
        ("lang_pair", True, named[:2]),
        ("lang_pairs", "source" in args and args.source, named[:2]),
    ):
        if named and is_used and option in args and not getattr(args, option):
            option = f"--{option.replace('_', '-')}"
            raise InputError(
                f"--model {models} without {option}; expected the languages of the text, for example {option} "
                + "-".join(example)
            )
    if not named and "lang" in args and args.lang:
        raise InputError(f"--lang {args.lang} with --model {models}, which names no language; leave it out")


def refuse_idf(args: argparse.Namespace) -> None:
    """Refuse weights that are counted over one text, for commands that read it in blocks."""
    if args.word_weights == "idf":
        raise InputError(
            "--word-weights idf counts words over one text, and this command goes through it in blocks; "
            "expected mean or sum"
        )


def model_files(specs: Iterable[str]) -> Iterator[Path]:
    """Yield the files that are read of the models that --model names; a foreign folder stands for all its content."""
    from fairseq_lxsr.embeddings import embedding_files, index_path, is_stored
    from fairseq_lxsr.encoder.find import find_model
    from fairseq_lxsr.encoder.folder import MODEL_FILES

    for spec in specs:
        path = find_model(spec.split("=", 1)[1] if _names_language(spec) else spec)
        if is_stored(path):
            yield from (part for file in embedding_files(path) for part in (file, index_path(file)))
        elif path.is_dir() and _is_ours(path):
            yield from (path / name for name in MODEL_FILES)
        else:
            yield path


def _names_language(spec: str) -> bool:
    language, is_named, _ = spec.partition("=")
    return bool(is_named) and "/" not in language and not Path(spec).exists()


def _load(name: str, args: argparse.Namespace, options: dict[str, Any]) -> "Encoder":
    from fairseq_lxsr import embeddings
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.encoder.find import find_model
    from fairseq_lxsr.encoder.folder import ST_MODULE

    path = find_model(name)
    if (path / ST_MODULE).is_dir():
        path = path / ST_MODULE
    if not (path.is_file() or embeddings.is_stored(path)) and (not path.is_dir() or _is_ours(path)):
        encoder = SentenceEncoder.from_pretrained(path, args.device, untrained=args.untrained)
        progress = {"show_progress": True} | options
        return embeddings.ModelFolder(encoder, batch_size=args.batch_size, **progress)
    if args.untrained:
        raise InputError(f"--untrained with --model {name}; expected a model folder of `lxsr export folder`")
    if path.is_file():
        _refuse_checkpoint(path)
        return embeddings.WordVectors(path, args.word_weights, show_progress=True)
    if embeddings.is_stored(path):
        return embeddings.StoredEmbeddings(path, args.raw_dim)
    return embeddings.sentence_transformers_folder(path, args.batch_size, args.device, show_progress=True)


def _refuse_checkpoint(path: Path) -> None:
    """Refuse a checkpoint of fairseq-train, before it is read as word vectors."""
    with open(path, "rb") as stream:
        is_archive = stream.read(len(ARCHIVE)) == ARCHIVE
    if is_archive or path.suffix == ".pt":
        raise InputError(
            f"--model {path}: a checkpoint or an archive; expected a model folder, of `lxsr export folder --checkpoint "
            "FILE.pt --output FOLDER`, or word vectors"
        )


def _is_ours(folder: Path) -> bool:
    """Return whether config.json is that of our model folders, or is missing (loading then says what is missing)."""
    from fairseq_lxsr.encoder.folder import CONFIG_FILE

    if (folder / "modules.json").exists():
        return False
    try:
        return "model_type" not in parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True


LOCAL = "local"


def add_ray_options(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the options; `output` says in the help what is written."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="work in shards, in the workers of a Ray cluster: local, processes of this machine (the same as --ray "
        f"alone); auto, the cluster that runs; HOST:PORT or ray://HOST:PORT. {output}; a rerun does what is missing",
    )
    parser.add_argument(
        "--workers", type=at_least(1), metavar="N", help="of --ray (default: one a core; one a GPU with --device cuda)"
    )
    parser.add_argument("--shard-lines", type=at_least(1), metavar="N", help="of --ray (default: 1,000,000)")


def in_cluster(args: argparse.Namespace) -> bool:
    """Return whether the work is done in a cluster."""
    if args.ray is None:
        for option, value in (("--workers", args.workers), ("--shard-lines", args.shard_lines)):
            if value is not None:
                raise InputError(f"{option} {value} without --ray; expected both, or neither")
        return False
    from fairseq_lxsr.cluster.workers import check_address
    from fairseq_lxsr.machine import require

    require("ray", "ray", "--ray")
    check_address(args.ray)
    return True


def workers(args: argparse.Namespace, load: "Load") -> "AbstractContextManager[Workers]":
    """Start the workers that the options name; each loads the encoder."""
    from fairseq_lxsr.cluster import SHARD_LINES, Cluster, connect

    gpu = (args.device or "").startswith("cuda")
    return connect(Cluster(args.ray, args.workers, gpu, args.shard_lines or SHARD_LINES), load)


def summary(done: dict[str, Any], workers: "Workers") -> str:
    """Describe how the work was divided."""
    kept = f" ({done['kept']:,} were there)" if done["kept"] else ""
    return f"{done['shards']:,} shards{kept}, {workers.seconds:,.0f} s of processors in the workers"
