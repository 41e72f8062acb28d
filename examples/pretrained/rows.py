"""Put a model together from the trainings on folded text: of all languages, and of weak ones.

python examples/pretrained/rows.py FOLDED ALL TRAINED ... --languages et,lv,lt \
    --text work/static/text --output MODEL

ALL continued from the model FOLDED, and each TRAINED from ALL, on weak languages only, which makes
the others worse. So each row of the table moves by the mean change of TRAINED, times the square
root of the share that weak languages have in the occurrences of its piece. It starts at a mean of
FOLDED and ALL. MODEL is a model folder with four bits a weight.
"""

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml
from fold import write_table
from sample import PAIRS_FILE, WORDS

from fairseq_lxsr.encoder import SentenceEncoder
from fairseq_lxsr.encoder.locate import find_model
from fairseq_lxsr.encoder.model_folder import TEXT_FILES
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines

# Number of lines that are read of each kind of text of a language pair.
LINES = 3000
# Weight of English, relative to another language: it is one side of all pairs.
ENGLISH = 5
# Weight of ALL in its mean with FOLDED.
WEIGHT_OF_ALL = 0.75


def piece_shares(
    encoder: SentenceEncoder, texts: Mapping[str, list[Path]], limit: int = LINES
) -> dict[str, np.ndarray]:
    """Return each piece's share of the occurrences in each text [V].

    Args:
        encoder: a model without layers.
        texts: files of each language or kind of text, one sentence a line.
        limit: maximum number of lines that are read of a file.
    """
    shares = {}
    for language, files in texts.items():
        counts = np.zeros(len(encoder.table))
        for file in files:
            lines = list(itertools.islice(read_lines(file), limit))
            for pieces in encoder.tokenizer.encode(lines):
                np.add.at(counts, np.asarray(pieces), 1)
        shares[language] = counts / max(counts.sum(), 1)
    return shares


def weak_share(shares: Mapping[str, np.ndarray], weak: set[str]) -> np.ndarray:
    """Return the share of weak languages in the occurrences of each piece [V].

    It is 0 for a piece that does not occur.
    """
    size = len(next(iter(shares.values())))
    total = np.zeros(size)
    of_weak = np.zeros(size)
    for language, share in shares.items():
        if language == "en":
            share = share * ENGLISH
        total += share
        if language in weak:
            of_weak += share
    return np.divide(of_weak, total, out=np.zeros(size), where=total > 0)


def kind_files(pairs_file: Path) -> dict[str, dict[str, list[Path]]]:
    """Return the files that `collect.py` lists, without lists of words: language, kind, files."""
    pairs = yaml.safe_load(pairs_file.read_text(encoding="utf-8"))["pairs"]
    files: dict[str, dict[str, list[Path]]] = {}
    for pair, kinds in pairs.items():
        for kind, prefix in kinds.items():
            if kind == WORDS:
                continue
            for language in pair.split("-"):
                of_kind = files.setdefault(language, {}).setdefault(kind, [])
                of_kind.append(Path(f"{prefix}.{language}"))
    return files


def language_files(pairs_file: Path) -> dict[str, list[Path]]:
    """Return the files of each language that `collect.py` lists, without lists of words."""
    files = kind_files(pairs_file)
    return {
        language: list(itertools.chain.from_iterable(kinds.values()))
        for language, kinds in files.items()
    }


def read_models(names: list[str]) -> list[SentenceEncoder]:
    """Return the models.

    Raises:
        InputError: if they differ in their word pieces.
    """
    models = [SentenceEncoder.from_pretrained(name) for name in names]
    for name, model in zip(names, models, strict=True):
        if model.tokenizer.symbols != models[0].tokenizer.symbols:
            raise InputError(
                f"{name}: other word pieces than {names[0]};"
                " expected a model that was trained from it"
            )
    return models


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folded", metavar="FOLDED", help="model folder that fold.py wrote")
    parser.add_argument("all", metavar="ALL", help="model folder of the training from it")
    parser.add_argument(
        "trained", metavar="TRAINED", nargs="+", help="model folders of trainings from ALL"
    )
    parser.add_argument("--languages", required=True, metavar="LANG,...", help="the weak languages")
    parser.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="output folder of collect.py"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="model folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("rows.py"):
        folded, model, *trained = read_models([args.folded, args.all, *args.trained])
        shares = piece_shares(model, language_files(args.text / PAIRS_FILE))
        moved = np.sqrt(weak_share(shares, set(args.languages.split(","))))
        change = np.mean([encoder.table for encoder in trained], axis=0) - model.table
        table = folded.table + WEIGHT_OF_ALL * (model.table - folded.table)
        table += moved[:, None] * change
        texts = [(find_model(args.all) / name).read_bytes() for name in TEXT_FILES]
        write_table(model, table, texts, args.output, "int4")
        print(f"{args.output}: {int((moved > 0).sum()):,} of {len(table):,} rows are of weak ones")


if __name__ == "__main__":
    main()
