"""Choose the checkpoint whose classifiers are best on the development sets of MLDoc, and export it.

As Li and Mak 2020 and LASER's authors do: every epoch is kept, and no text of the test sets is
read. The score of an epoch is the mean accuracy over all pairs of a language to train the
classifier in and a language to try it in.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.evaluation.protocols.documents import read_language
from fairseq_lxsr.evaluation.score import read_scores
from fairseq_lxsr.options import FILE_NAME, file_path


def write_development_sets(data: str, languages: list[str], folder: Path) -> None:
    """Write MLDoc as it is, with the development set of each language in the place of its test
    set.
    """
    for language in languages:
        parts = read_language(data, language, learn=True, test=False)
        for name, part in (
            ("train", parts["train"]),
            ("dev", parts["dev"]),
            ("test", parts["dev"]),
        ):
            lines = zip(part.labels, part.text.lines, strict=True)
            text = "".join(f"{label}\t{line}\n" for label, line in lines)
            (folder / f"{language}.{name}").write_text(text, encoding="utf-8")


def epochs_of(folder: Path) -> dict[int, Path]:
    """Find the checkpoint of every epoch."""
    names = (
        (re.fullmatch(r"checkpoint(\d+)\.pt", path.name), path)
        for path in folder.glob("checkpoint*.pt")
    )
    found = {int(match[1]): path for match, path in names if match}
    if not found:
        raise InputError(
            f"{folder}: has no checkpoint1.pt, checkpoint2.pt, ...; train without --no-epoch-checkpoints"
        )
    return dict(sorted(found.items()))


def export(checkpoint: Path, model: Path) -> None:
    subprocess.run(
        ["lxsr", "export", "folder", "--checkpoint", checkpoint, "--output", model], check=True
    )


def accuracy(checkpoint: Path, data: Path, languages: str, work: Path) -> float:
    """Return the mean accuracy of a checkpoint over all pairs of languages."""
    export(checkpoint, work / "model")
    scores = work / f"{checkpoint.stem}.jsonl"
    model = ("--model", work / "model", "--output", scores)
    subprocess.run(
        ["lxsr", "eval", "mldoc", *model, "--data", data, "--langs", languages], check=True
    )
    values = [score.values["accuracy"] for score in read_scores(scores)]
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoints",
        type=file_path,
        required=True,
        metavar="FOLDER",
        help="--save-dir of training",
    )
    parser.add_argument(
        "--data", type=FILE_NAME, required=True, metavar="FOLDER", help="as for `lxsr eval mldoc`"
    )
    parser.add_argument("--langs", default="de,en,es,fr,it", help="(default: %(default)s)")
    parser.add_argument(
        "--output", type=file_path, required=True, metavar="FOLDER", help="for the exported model"
    )
    args = parser.parse_args()
    with exit_on_input_error("choose.py"), tempfile.TemporaryDirectory() as folder:
        epochs, data = epochs_of(args.checkpoints), Path(folder, "mldoc")
        data.mkdir()
        write_development_sets(args.data, args.langs.split(","), data)
        found = {
            epoch: accuracy(path, data, args.langs, Path(folder)) for epoch, path in epochs.items()
        }
        best = max(found, key=lambda epoch: found[epoch])
        for epoch, value in found.items():
            print(
                f"epoch {epoch:3}: accuracy on dev {value:5.1f}{' <- exported' if epoch == best else ''}"
            )
        export(epochs[best], args.output)


if __name__ == "__main__":
    main()
