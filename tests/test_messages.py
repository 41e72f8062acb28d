"""The most frequent error messages, word by word.

Other tests check only the file, place and value that a message names, so that its words may change.
The messages of this file were read by people: change them here when you change them in the code.
"""

import shutil

import pytest
from conftest import COMPATIBILITY, lxsr_here, refused

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.errors import InputError

MODEL = COMPATIBILITY / "best.model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with small texts, a model of width 8, a damaged model and an index.

    text.en has one line more than text.fr; `latin` is not UTF-8; `folder` has no model.
    """
    folder = tmp_path_factory.mktemp("messages")
    (folder / "text.en").write_text("a dog\na cat\na house\n")
    (folder / "text.fr").write_text("un chien\nun chat\n")
    (folder / "latin").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "empty").write_text("")
    (folder / "not.jsonl").write_text("{}\n")
    (folder / "pairs.tsv").write_text("a\tb\n")
    (folder / "folder").mkdir()
    shutil.copytree(MODEL, folder / "model")
    weights = shutil.copytree(MODEL, folder / "damaged") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    lxsr_here("index", "--model", "model", "--input", "text.en", "--output", "index", folder=folder)
    return folder


EMBED = "embed --input text.en --output vectors.npy --model"

# Commands in that folder, and the message of each.
COMMANDS = {
    f"{EMBED} none": (
        "none: no such model folder; create one with `lxsr export folder`, or use a model "
        "of this package (lxsr-static)"
    ),
    f"{EMBED} folder": (
        "folder/config.json: no such file; create a model folder with `lxsr export folder`"
    ),
    f"{EMBED} damaged": (
        "damaged/model.safetensors: checksum mismatch with config.json: export the model "
        "again, or copy the whole folder"
    ),
    f"{EMBED} model --truncate-dim 999": (
        "--truncate-dim 999 is invalid; expected 1 to 8, the width of the model"
    ),
    f"{EMBED} model --batch-size 0": (
        "argument --batch-size: '0' is invalid; expected an integer of at least 1; see lxsr embed --help"
    ),
    f"{EMBED} model --no-option": "unrecognized arguments: --no-option; see lxsr embed --help",
    f"{EMBED} model --output text.en": (
        "text.en would overwrite the input text.en; choose another name for the output"
    ),
    "embed --model model --input . --output vectors.npy": (
        "vectors.npy is inside the folder ., which is an input; choose another folder for the "
        "output, or a file as input"
    ),
    "corpus get none --output text": (
        "'none': unknown corpus; `lxsr corpus list` prints the names"
    ),
    f"{EMBED} model --shard 5/4": (
        "argument --shard: '5/4' is invalid; expected for example 2/4, the second of four parts; see "
        "lxsr embed --help"
    ),
    "embed --model model --input none --output vectors.npy": ("none: no such file; check the name"),
    "embed --model model --input empty --output vectors.npy": (
        "empty: empty file; expected one sentence per line"
    ),
    "embed --model model --input latin --output vectors.npy": (
        "latin, line 2: bytes e9 0a at byte 4 are not UTF-8; convert the file, for example "
        "with iconv"
    ),
    "embed --model model --output vectors.npy": (
        "the following arguments are required: --input; see lxsr embed --help"
    ),
    "export folder --checkpoint none.pt --output exported": (
        "none.pt: no such checkpoint; there is no other checkpoint in its folder"
    ),
    "export folder --checkpoint text.en --output exported": (
        "text.en: cut off or damaged, not a complete checkpoint: delete it; there is no "
        "other checkpoint in its folder"
    ),
    "eval xsr --model model --source text.en": (
        "specify either --source and --target, or --data and --lang-pairs"
    ),
    "eval xsr --model model --source text.en --target text.fr": (
        "text.en has 3 lines and text.fr has 2; expected aligned files with the same "
        "number of lines: line 3 has no counterpart, text.en: 'a house'"
    ),
    "eval xsr --model model --data text --lang-pairs en": (
        "--lang-pairs en: 'en'; expected SRC-TGT, for example en-fr"
    ),
    "compare not.jsonl not.jsonl": (
        "not.jsonl, line 1: not a score (KeyError('protocol')); expected the output of "
        "`lxsr eval --output`"
    ),
    "mine --model model --source text.en --target text.fr --output pairs --k 3": (
        "--k: k is 3; expected 1 to 2, the number of different lines of text.fr"
    ),
    "score --model model --input pairs.tsv --columns 1,4": (
        "pairs.tsv, line 1: 2 columns in 'a\\tb'; expected at least 4, separated by tabs"
    ),
    "search --index none dog": "none: not an index, no such folder; build one with `lxsr index`",
    "search --index index": "specify either sentences to search for, or --input FILE",
    "prepare --data none --work work": (
        "none.en: no such file (nor with .txt, .gz, .xz, .zst, .bz2); expected PREFIX.en "
        "and PREFIX.fr, one file .tsv, .csv, .jsonl, .ndjson, .tmx, .xlf, .xliff, "
        ".mqxliff, .sdlxliff, .xml, .po, .mo, or a folder of gettext catalogues"
    ),
    "train none --recipe best": (
        "none: no such data folder; expected the output of fairseq-preprocess or `lxsr prepare`"
    ),
    "run demo --lang-pair en-de": (
        "--lang-pair en-de cannot be used with demo, whose text is en-fr; use the PREFIX of your "
        "own text"
    ),
    "report none": "none: no such folder; expected one with *.log and *.jsonl",
    "compare not.jsonl": (
        "compare not.jsonl: only one score file; specify two files, or --published"
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_with_a_mistake_is_refused_with_its_message(command, folder):
    expected = COMMANDS[command]

    done = lxsr_here(*command.split(), check=False, folder=folder)

    refused(done)
    last_line = done.stderr.splitlines()[-1]
    _, _, message = last_line.partition(": error: ")
    assert message == expected


# Calls in that folder, and the message of each.
CALLS = {
    'SentenceEncoder.from_pretrained("none")': (
        "none: no such model folder; create one with `lxsr export folder`, or use a model "
        "of this package (lxsr-static)"
    ),
    'SentenceEncoder.from_pretrained("model").encode(["a dog"], truncate_dim=999)': (
        "truncate_dim is 999; expected 1 to 8, the number of dimensions"
    ),
    'SentenceEncoder.from_pretrained("model").encode(["a dog"], dtype="float8")': (
        "dtype is 'float8'; expected one of float32, bfloat16, float16, int8"
    ),
    'SentenceEncoder.from_pretrained("model").encode(["a dog", 3])': (
        "texts[1] is 3; expected a string: remove it, or use ''"
    ),
    'SentenceEncoder.from_pretrained("model").encode("a dog", prompt="query: ")': (
        "prompt 'query: ' is not supported; omit it"
    ),
    'SentenceEncoder.from_pretrained("model").similarity("a dog", ["un chien"])': (
        "first embeddings are text; expected vectors: pass encoder.encode(texts)"
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_with_a_mistake_is_refused_with_its_message(call, folder, monkeypatch):
    expected = CALLS[call]
    monkeypatch.chdir(folder)

    with pytest.raises(InputError) as caught:
        eval(call, {"SentenceEncoder": SentenceEncoder})

    assert str(caught.value) == expected
