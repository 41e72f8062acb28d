"""Export the checkpoint whose classifiers are best on the development sets of MLDoc.

This follows Li and Mak 2020 and the authors of LASER: every epoch is kept, and no test set is read.
The score of an epoch is the mean accuracy over all pairs of a training and a test language.
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
    """Write a copy of MLDoc with the development set of each language in place of its test set."""
    for language in languages:
        parts = read_language(data, language, learn=True, test=False)
        files = {"train": parts["train"], "dev": parts["dev"], "test": parts["dev"]}
        for name, part in files.items():
            lines = zip(part.labels, part.text.lines, strict=True)
            text = "".join(f"{label}\t{line}\n" for label, line in lines)
            (folder / f"{language}.{name}").write_text(text, encoding="utf-8")


def epochs_of(folder: Path) -> dict[int, Path]:
    """Return the checkpoint of every epoch, in order."""
    checkpoints = {}
    for path in folder.glob("checkpoint*.pt"):
        match = re.fullmatch(r"checkpoint(\d+)\.pt", path.name)
        if match:
            checkpoints[int(match[1])] = path
    if not checkpoints:
        raise InputError(
            f"{folder}: no checkpoint1.pt, checkpoint2.pt, ...; train without "
            "--no-epoch-checkpoints"
        )
    return dict(sorted(checkpoints.items()))


def export(checkpoint: Path, model: Path) -> None:
    subprocess.run(
        ["lxsr", "export", "folder", "--checkpoint", checkpoint, "--output", model], check=True
    )


def accuracy(checkpoint: Path, data: Path, args: argparse.Namespace, work: Path) -> float:
    """Return the mean accuracy of a checkpoint over all pairs of languages, in percent."""
    export(checkpoint, work / "model")
    scores = work / f"{checkpoint.stem}.jsonl"
    model = ("--model", work / "model", "--output", scores)
    reading = ("--data", data, "--langs", args.langs, "--on-long", args.on_long)
    subprocess.run(["lxsr", "eval", "mldoc", *model, *reading], check=True)
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
        "--data", type=FILE_NAME, required=True, metavar="FOLDER", help="see `lxsr eval mldoc`"
    )
    parser.add_argument("--langs", default="de,en,es,fr,it", help="(default: %(default)s)")
    parser.add_argument(
        "--on-long",
        default="split-mean",
        help="see `lxsr eval mldoc`; use `cut` for T-LASER, as in the paper (default: split-mean)",
    )
    parser.add_argument(
        "--output",
        type=file_path,
        required=True,
        metavar="FOLDER",
        help="folder of the exported model",
    )
    args = parser.parse_args()
    with exit_on_input_error("choose.py"), tempfile.TemporaryDirectory() as folder:
        epochs = epochs_of(args.checkpoints)
        data = Path(folder, "mldoc")
        data.mkdir()
        write_development_sets(args.data, args.langs.split(","), data)
        accuracies = {}
        for epoch, path in epochs.items():
            accuracies[epoch] = accuracy(path, data, args, Path(folder))
        best = max(accuracies, key=lambda epoch: accuracies[epoch])
        for epoch, value in accuracies.items():
            line = f"epoch {epoch:3}: accuracy on dev {value:5.1f}"
            if epoch == best:
                line += " <- exported"
            print(line)
        export(epochs[best], args.output)


if __name__ == "__main__":
    main()
