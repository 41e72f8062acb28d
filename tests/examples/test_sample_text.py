"""examples/pretrained/sample.py draws pairs of each language and kind of text."""

import json
from pathlib import Path

import toy
import yaml
from conftest import ROOT, load_script, main_here, refused

SCRIPT = load_script(ROOT / "examples" / "pretrained" / "sample.py")


def write_text(folder, sizes):
    """Write text as collect.py does; `sizes` maps a pair and a kind to the number of sentences."""
    files = {}
    for pair, kinds in sizes.items():
        for kind, size in kinds.items():
            prefix = folder / f"{kind}.{pair}"
            for language in pair.split("-"):
                lines = [f"{language} {kind} {number}\n" for number in range(size)]
                prefix.with_name(f"{prefix.name}.{language}").write_text("".join(lines))
            files.setdefault(pair, {})[kind] = str(prefix)
    (folder / "pairs.yaml").write_text(json.dumps({"pairs": files}))


def sampled_sizes(folder, *options):
    """Return the number of sentences of each pair and kind that the script writes.

    Estonian is a weak language. Checks that the sides of a pair stay aligned.
    """
    main_here(SCRIPT, "--text", folder, "--weak", "et", "--output", folder / "out", *options)
    pairs = yaml.safe_load((folder / "out" / "pairs.yaml").read_text())["pairs"]
    sizes = {}
    for pair, kinds in pairs.items():
        for kind, prefix in kinds.items():
            sides = []
            for language in pair.split("-"):
                lines = Path(f"{prefix}.{language}").read_text().splitlines()
                sides.append([line.removeprefix(f"{language} ") for line in lines])
            assert sides[0] == sides[1]
            sizes[pair, kind] = len(sides[0])
    return sizes


def test_weak_languages_have_a_limit_of_their_own(tmp_path):
    # Lists of words are no text.
    write_text(tmp_path, {"en-fr": {"law": 9, "words": 9}, "en-et": {"web": 9, "law": 3}})

    sizes = sampled_sizes(tmp_path, "--limit", 2, "--weak-limit", 5)

    assert sizes == {("en-fr", "law"): 2, ("en-et", "web"): 5, ("en-et", "law"): 3}


def test_without_a_limit_only_weak_languages_are_drawn(tmp_path):
    write_text(tmp_path, {"en-fr": {"law": 9}, "en-et": {"web": 9}})

    sizes = sampled_sizes(tmp_path, "--weak-limit", 5)

    assert sizes == {("en-et", "web"): 5}


def test_a_kind_of_text_may_be_left_out(tmp_path):
    write_text(tmp_path, {"en-et": {"web": 9, "headings": 9}})

    sizes = sampled_sizes(tmp_path, "--weak-limit", 5, "--without", "headings")

    assert sizes == {("en-et", "web"): 5}


def test_lists_of_words_are_copied_for_weak_languages_only(tmp_path):
    write_text(tmp_path, {"en-fr": {"law": 9}, "en-et": {"law": 9}})
    for pair in ("fi-et", "en-fr"):
        for language in pair.split("-"):
            lines = [f"{language} word {number}" for number in range(3)]
            toy.pack(tmp_path / f"panlex.{pair}.{language}", lines)

    sizes = sampled_sizes(tmp_path, "--weak-limit", 5, "--words", tmp_path / "panlex")

    assert sizes == {("en-et", "law"): 5, ("fi-et", "panlex"): 3}


def test_a_missing_list_of_words_is_refused(tmp_path):
    write_text(tmp_path, {"en-et": {"law": 9}})
    options = ("--text", tmp_path, "--weak", "et", "--weak-limit", 5, "--output", tmp_path / "out")

    done = main_here(SCRIPT, *options, "--words", tmp_path / "cldr", check=False)

    refused(done, tmp_path / "cldr")
