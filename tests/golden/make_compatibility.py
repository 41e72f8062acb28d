"""Makes tests/golden/compatibility: small checkpoints, their model folders and vectors, by an older version of us.

git worktree add --detach /tmp/older 21e76a4
PYTHONPATH=/tmp/older:tests python tests/golden/make_compatibility.py FOLDER

It imports what that commit has, not what is here; the checkpoints must stay as they are.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import toy
from preprocess.documents import binarise_documents, make_documents

import fairseq_lxsr
from fairseq_lxsr import SentenceEncoder

PLUGIN = Path(fairseq_lxsr.__file__).parent
KEPT = ("train.*.???", "valid.*.???", "*.npy", "dict*.txt", "sentencepiece.model", "text.json")
PAIRS = "--task xling_sent --criterion xling_sent_loss --max-positions 24 --batch-size 16"
TRANSLATION = (
    "--task xling_translation --criterion xling_translation_loss --constraint norm --negatives 4 "
    "--max-positions 24 --max-tokens 400"
)
TINY = "--encoder-embed-dim 8 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"
RUNS = {  # the data folder and the options
    "lxsr": f"data {PAIRS} --arch lxsr_tiny {TINY} --encoder-layers 1",
    "best": f"data {PAIRS} --arch lxsr_best {TINY} --objective none --gen-weight 0 --sim-weight 0 --align-similarity "
    "cosine --align-temperature 0.1 --hard-negatives swap --word-dropout 0.1 --init-embeddings lsi --store-ema "
    "--ema-decay 0.9",
    # options that are gone
    "refuted": f"data {PAIRS} --arch lxsr_tiny {TINY} --encoder-layers 1 --learn-temperature --pooling mean_max "
    "--align-margin 0.1 --sim-form mse",
    "laser": f"data {TRANSLATION} --arch laser_tiny --encoder-embed-dim 6 --encoder-hidden-size 4 --encoder-layers 2 "
    "--decoder-embed-dim 6 --decoder-hidden-size 8 --decoder-lang-embed-dim 4",
    "tlaser": f"data {TRANSLATION} --arch tlaser_tiny {TINY} --encoder-layers 1 --decoder-lang-embed-dim 4",
    "context": "documents --task sent_context --criterion sent_context_loss --arch context_transformer_tiny "
    f"{TINY} --langs en,fr --max-positions 40 --batch-size 16",
}
COMMON = ("--optimizer", "adam", "--lr", "0.01", "--no-epoch-checkpoints", "--seed", "1")
SENTENCES = [
    *(side for pair in toy.sentences(3, seed=9) for side in pair),
    *("", "dog", "A word that no one knows: Zürich.", "One red dog sees the cat. " * 8),
]


def run(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def prepare(work: Path) -> None:
    """Make `data` and `documents` in the current folder; a model without normalization table is 240 KB smaller."""
    toy.write(work / "text", toy.sentences(60))
    config = {"pairs": {"en-fr": str(work / "text")}, "work": str(work), "valid_size": 10, "test_size": 1}
    config["subwords"] = {"vocab_size": 90, "normalisation": "identity"}
    (work / "config.yaml").write_text(json.dumps(config))
    run("fairseq_lxsr.cli.main", "prepare", work / "config.yaml")
    languages = {language: work / f"stories.{language}" for language in ("en", "fr")}
    for side, path in enumerate(languages.values()):
        sentences = [pair[side] for pair in toy.sentences(48)]
        stories = ["\n".join(sentences[start : start + 4]) for start in range(0, 48, 4)]
        path.write_text("\n\n".join(stories))
    make_documents(work / "stories", languages, 2, 1)
    binarise_documents(work / "documents-bin", work / "stories", list(languages), work / "subwords", 1)
    for name, output in (("data-bin", "data"), ("documents-bin", "documents")):
        Path(output).mkdir()
        for pattern in KEPT:
            for path in (work / name).glob(pattern):
                shutil.copy(path, output)


def train(name: str, save_dir: Path, updates: int, *more: str) -> list[list[float]]:
    """Train, or go on, to so many updates and export to SAVE_DIR.model. Returns: the vectors of `SENTENCES`."""
    data, *options = RUNS[name].split()
    place = ("--user-dir", "fairseq_lxsr", "--cpu", "--save-dir", save_dir)
    run("fairseq_cli.train", data, *place, *options, *COMMON, "--max-update", updates, *more)
    checkpoint, model = save_dir / "checkpoint_last.pt", save_dir.with_suffix(".model")
    run("fairseq_lxsr.cli.main", "export-model", "--checkpoint", checkpoint, "--output", model, "--data", data)
    return SentenceEncoder.from_pretrained(model).encode(SENTENCES).astype(float).round(8).tolist()


def main(output: Path) -> None:
    output.mkdir(parents=True)
    os.chdir(output)  # so that no path of this machine stands in a checkpoint
    work = Path("work")
    prepare(work)
    Path("fairseq_lxsr").symlink_to(PLUGIN)
    runs = {}
    for name, words in RUNS.items():
        data, *options = words.split()
        vectors = train(name, work / name, 6)
        shutil.copy(work / name / "checkpoint_last.pt", f"{name}.pt")
        shutil.copytree(work / f"{name}.model", f"{name}.model", ignore=shutil.ignore_patterns("README.md"))
        resumed = train(name, work / name, 8, "--dropout", "0")
        runs[name] = {"data": data, "options": [*options, *COMMON], "vectors": vectors, "resumed": resumed}
    Path("runs.json").write_text(json.dumps({"sentences": SENTENCES, "runs": runs}) + "\n")
    Path("fairseq_lxsr").unlink()
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
