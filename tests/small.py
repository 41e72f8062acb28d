"""Makes the commands of the documents small: few updates, narrow models, few pieces."""

from pathlib import Path

import yaml

ARCHITECTURES = {
    "lxsr_base": "lxsr_tiny",
    "tlaser_base": "tlaser_tiny",
    "laser_1": "laser_tiny",
    "context_transformer_static": "context_transformer_tiny",
    "context_transformer_base": "context_transformer_tiny",
}
TRAINING = {
    "--max-update": 3,
    "--total-num-update": 3,
    "--warmup-updates": 1,
    "--max-epoch": 1,
    "--batch-size": 64,
    "--update-freq": 1,
}
PREPARING = {"--vocab-size": 200, "--valid-size": 20, "--test-size": 20}
# `lxsr prepare` holds out thousands of pairs by default.
HELD_OUT = ("--valid-size", "20", "--test-size", "20")
EVALUATING = {"--epochs": 2, "--seeds": 1}
# Fields of YAML files, in any mapping of a file.
FIELDS = {
    "vocab_size": 200,
    "valid_size": 20,
    "test_size": 20,
    "valid_documents": 2,
    "draw": 20,
    "best": 10,
    "pairs": 20,
    "workers": 1,
}


def shrink(name: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command with smaller values; absent options stay absent."""
    if name in ("fairseq-train", "fairseq-generate"):
        return _training(arguments)
    if (
        name == "python"
        and arguments[:1] in (["-c"], ["-m"])
        and "fairseq_cli.train" in arguments[1]
    ):
        # `lxsr train` and `lxsr train-context` start fairseq-train by this command.
        return [*arguments[:2], *_training(arguments[2:])]
    if name == "python" and arguments[:1] == ["preprocess/fairseq_preprocess.py"]:
        return _with_values(arguments, PREPARING)
    if name == "lxsr" and arguments:
        return _verb(arguments)
    return arguments


def _training(arguments: list[str]) -> list[str]:
    smaller = _with_values(arguments, TRAINING)
    if "--arch" in smaller:
        place = smaller.index("--arch") + 1
        smaller[place] = ARCHITECTURES.get(smaller[place], smaller[place])
        if smaller[place] == "lxsr_best":
            smaller += ["--encoder-embed-dim", "32"]
    return [*smaller, "--cpu"]


def _verb(arguments: list[str]) -> list[str]:
    if arguments[0] in ("prepare", "train-context"):
        arguments = [
            str(_file(Path(word))) if word.endswith(".yaml") else word for word in arguments
        ]
        held_out = HELD_OUT if arguments[0] == "prepare" and "--data" in arguments else ()
        return [*_with_values(arguments, PREPARING), *held_out]
    if arguments[:2] in (["eval", "mldoc"], ["eval", "xnli"]):
        return [*arguments, *(str(word) for item in EVALUATING.items() for word in item)]
    return arguments


def _with_values(arguments: list[str], values: dict[str, int]) -> list[str]:
    return [
        str(values.get(before, word))
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]


def _file(path: Path) -> Path:
    """Write a copy of a YAML file with smaller sizes into its folder."""

    def smaller(content, name=""):
        if isinstance(content, dict):
            return {key: smaller(value, key) for key, value in content.items()}
        if name == "arch":
            return ARCHITECTURES.get(content, content)
        return FIELDS.get(name, content) if isinstance(content, int) else content

    copy = path.with_suffix(".small.yaml")
    copy.write_text(yaml.safe_dump(smaller(yaml.safe_load(path.read_text()))))
    return copy
