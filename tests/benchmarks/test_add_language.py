"""The benchmark of adding a language, on toy text."""

import json

import pytest
import small_model
import toy
from conftest import main_here

from benchmarks.quality import add_language

# Each English letter as a Cyrillic one.
CYRILLIC = {ord("a") + number: 0x430 + number for number in range(26)}


def write_new_language(folder, kind, pairs) -> None:
    """Write English text and its translations, in letters that the old model does not know."""
    translations = [target.lower().translate(CYRILLIC) for _, target in pairs]
    toy.pack(folder / f"{kind}.en-gl.en", [source for source, _ in pairs])
    toy.pack(folder / f"{kind}.en-gl.gl", translations)


@pytest.fixture(scope="module")
def options(tmp_path_factory, python_is_a_fork):
    """Options that train an old model further, three updates, on 600 pairs of the new language.

    Every set has 60 pairs: `help` is left out of the training text, `game` is another kind of text,
    `Tatoeba` and `pud`, in the old language French, are public sets.
    """
    folder = tmp_path_factory.mktemp("add_language")
    write_new_language(folder, "help", toy.sentences(660))
    write_new_language(folder, "game", toy.sentences(60, seed=2))
    public_pairs = toy.sentences(60, seed=3)
    english = [source for source, _ in public_pairs]
    toy.pack(folder / "eval/pud.en", english)
    toy.pack(folder / "eval/pud.fr", [target for _, target in public_pairs])
    for code in ("eng", "glg"):
        toy.pack(folder / f"eval/tatoeba-v1.glg-eng.{code}", english)
    old_model = small_model.write_folder(folder / "old", num_layers=0, gated=True)
    files = ["--data", folder, "--work", folder / "work", "--output", folder / "scores.json"]
    model = ["--model", old_model, "--new", "gl", "--ways", "from"]
    size = ["--pairs", 600, "--seeds", 1]
    training = ["--options", "--max-update 3 --batch-size 64 --num-workers 0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(add_language, "TEST_PAIRS", 60)
        yield [*files, *model, *size, *training]


@pytest.fixture(scope="module")
def results(options):
    """The results of the only training that the options ask for."""
    main_here(add_language, *options)
    return json.loads(options[options.index("--output") + 1].read_text())


@pytest.mark.slow
def test_each_training_has_a_row_with_the_scores_of_every_set_of_the_new_language(results):
    [row] = results["rows"]

    assert (row["way"], row["pairs"], row["seed"]) == ("from", 600, 1)
    assert set(row["P@1"]) == {"help", "game", "Tatoeba"}


@pytest.mark.slow
def test_the_trained_model_finds_more_translations_of_the_new_language_than_the_old_one(results):
    before = results["before"]["gl"]["help"]
    [row] = results["rows"]

    # P@1 in percent, from English and into English.
    assert min(row["P@1"]["help"]) > max(before) + 20


@pytest.mark.slow
def test_training_further_leaves_the_scores_of_an_old_language_unchanged(results):
    before = results["before"]["old languages"]["fr"]
    [row] = results["rows"]

    assert row["old languages"]["fr"] == before


@pytest.mark.slow
@pytest.mark.usefixtures("results")
def test_a_second_run_does_not_repeat_a_training_that_has_scores(options):
    work = options[options.index("--work") + 1]
    scores_of_training = work / "gl.600.from.1" / "scores.json"
    time_of_first_run = scores_of_training.stat().st_mtime_ns

    main_here(add_language, *options)

    assert scores_of_training.stat().st_mtime_ns == time_of_first_run
