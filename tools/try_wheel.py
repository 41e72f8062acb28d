"""Encode, index, mine and score with the installed package: what it must do on every system."""

import subprocess
import sys
import tempfile
from pathlib import Path

import fairseq_lxsr
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

QUERY = "The dog is asleep."
NOTES = ("Où est la gare ?", "Es regnet.", "El perro duerme.")
TRANSLATIONS = ("Where is the station?", "It is raining.", "The dog is sleeping.")
MODEL = ("--model", "lxsr-static")


def try_functions(folder: Path) -> None:
    """Compare sentences, and search an index."""
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    similarities = encoder.similarity(encoder.encode(TRANSLATIONS[0]), encoder.encode(list(NOTES)))
    assert similarities.argmax() == 0, similarities
    assert similarities.max() > 0.8, similarities
    CorpusIndex.build(folder / "notes", NOTES, encoder)
    (hit,) = CorpusIndex.load(folder / "notes").search(QUERY, k=1)
    print(hit)
    assert hit.sentence == NOTES[2]


def run(folder: Path, *words: str | Path) -> str:
    """Run a command of `lxsr` in a folder, and return what it prints."""
    command = [sys.executable, "-m", "fairseq_lxsr", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=folder)
    assert done.returncode == 0, f"{words}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def try_commands(folder: Path) -> None:
    """Run the commands that need no extra."""
    notes = folder / "notes.txt"
    translations = folder / "en.txt"
    query = folder / "query.txt"
    pairs = folder / "pairs.tsv"
    notes.write_text("\n".join(NOTES) + "\n", encoding="utf-8")
    translations.write_text("\n".join(TRANSLATIONS) + "\n", encoding="utf-8")
    run(folder, "embed", *MODEL, "--input", notes, "--output", folder / "notes.npy")
    run(folder, "index", *MODEL, "--input", notes, "--output", folder / "index")
    query.write_text(f"{QUERY}\n", encoding="utf-8")
    assert NOTES[2] in run(
        folder, "search", "--index", folder / "index", "--input", query, "--k", "1"
    )
    run(
        folder,
        "mine",
        *MODEL,
        "--source",
        notes,
        "--target",
        translations,
        "--k",
        "2",
        "--output",
        pairs,
    )
    assert len(pairs.read_text(encoding="utf-8").splitlines()) == len(NOTES)
    scores = run(folder, "score", *MODEL, "--source", notes, "--target", translations)
    assert min(map(float, scores.split())) > 0.5, scores


def main() -> None:
    print(f"fairseq-lxsr {fairseq_lxsr.__version__}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        try_functions(Path(folder))
        try_commands(Path(folder))


if __name__ == "__main__":
    main()
