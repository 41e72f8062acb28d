"""examples/pretrained/sample.py draws pairs of each language and kind of text."""

import json
from pathlib import Path

import toy
import yaml
from conftest import ROOT, load_script, main_here, refused

SCRIPT = load_script(ROOT / "examples" / "pretrained" / "sample.py")


def collected(folder, kinds):
    """Write text as collect.py does: pair, kind, number of pairs."""
    files = {}
    for pair, numbers in kinds.items():
        for kind, number in numbers.items():
            prefix = folder / f"{kind}.{pair}"
            for language in pair.split("-"):
                lines = [f"{language} {kind} {place}\n" for place in range(number)]
                prefix.with_name(f"{prefix.name}.{language}").write_text("".join(lines))
            files.setdefault(pair, {})[kind] = str(prefix)
    (folder / "pairs.yaml").write_text(json.dumps({"pairs": files}))


def sampled(folder, *options):
    main_here(SCRIPT, "--text", folder, "--weak", "et", "--output", folder / "out", *options)
    pairs = yaml.safe_load((folder / "out" / "pairs.yaml").read_text())["pairs"]
    texts = {}
    for pair, kinds in pairs.items():
        for kind, prefix in kinds.items():
            sides = []
            for language in pair.split("-"):
                lines = Path(f"{prefix}.{language}").read_text().splitlines()
                sides.append([line.removeprefix(f"{language} ") for line in lines])
            # The two sides stay aligned.
            assert sides[0] == sides[1]
            texts[pair, kind] = len(sides[0])
    return texts


def test_weak_languages_have_their_own_limit(tmp_path):
    collected(tmp_path, {"en-fr": {"law": 9, "words": 9}, "en-et": {"web": 9, "law": 3}})
    expected = {("en-fr", "law"): 2, ("en-et", "web"): 5, ("en-et", "law"): 3}
    assert sampled(tmp_path, "--limit", 2, "--weak-limit", 5) == expected
    del expected["en-fr", "law"]
    assert sampled(tmp_path, "--weak-limit", 5) == expected


def test_a_kind_of_text_is_left_out(tmp_path):
    collected(tmp_path, {"en-et": {"web": 9, "headings": 9}})
    found = sampled(tmp_path, "--weak-limit", 5, "--without", "headings")
    assert found == {("en-et", "web"): 5}


def test_lists_of_words_of_weak_languages(tmp_path):
    collected(tmp_path, {"en-fr": {"law": 9}, "en-et": {"law": 9}})
    for pair in ("fi-et", "en-fr"):
        for language in pair.split("-"):
            lines = [f"{language} word {place}" for place in range(3)]
            toy.pack(tmp_path / f"panlex.{pair}.{language}", lines)
    found = sampled(tmp_path, "--weak-limit", 5, "--words", tmp_path / "panlex")
    assert found == {("en-et", "law"): 5, ("fi-et", "panlex"): 3}


def test_a_list_that_is_not_there_is_refused(tmp_path):
    collected(tmp_path, {"en-et": {"law": 9}})
    options = ("--text", tmp_path, "--weak", "et", "--weak-limit", 5, "--output", tmp_path / "out")
    done = main_here(SCRIPT, *options, "--words", tmp_path / "cldr", check=False)
    refused(done, tmp_path / "cldr")
