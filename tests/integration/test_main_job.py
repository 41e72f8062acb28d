"""The main job with the real commands: prepare, train, validate, export, embed, evaluate."""

import numpy as np
import pytest
import toy
from conftest import TRAIN_OPTIONS, export, lxsr, lxsr_here, refused, run, train, validations
from forks import FAIRSEQ

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.evaluation.score import read_scores

# Options of training with the align loss of cosines, and without the generative loss.
COSINES = {"objective": "none", "align_similarity": "cosine", "align_temperature": "0.1"}


def evaluate(model, test, output):
    """Return the scores of both directions of the test text, 200 pairs."""
    files = ("--source", f"{test}.en", "--target", f"{test}.fr", "--metric", "nn")
    result = lxsr("eval", "xsr", "--model", model, *files, "--output", output)
    scores = read_scores(output)
    assert [score.task for score in scores] == ["source->target", "target->source"]
    for score in scores:
        assert score.settings["queries"] == 200
        assert score.signature in result.stdout
    return scores


@pytest.fixture
def test_text(toy_work):
    """The prefix of test.en and test.fr."""
    return toy_work / "corpus" / "en-fr" / "test"


def test_a_trained_encoder_finds_most_translations(test_text, toy_model, tmp_path):
    for score in evaluate(toy_model, test_text, tmp_path / "trained.jsonl"):
        assert score.values["P@1"] > 80
        assert score.values["P@10"] >= score.values["P@5"] >= score.values["P@1"]


def test_an_untrained_encoder_finds_few_translations(test_text, toy_model, tmp_path):
    for score in evaluate(f"{toy_model}#untrained", test_text, tmp_path / "untrained.jsonl"):
        assert score.values["P@1"] < 20


def test_fairseq_validate_measures_the_accuracy_and_all_terms_of_a_checkpoint(
    toy_work, toy_checkpoint
):
    options = ["--user-dir", "fairseq_lxsr", "--task", "xling_sent", "--cpu"]
    options += ["--log-format", "simple", "--path", toy_checkpoint]
    options += ["--valid-subset", "test", "--batch-size", 32]

    result = run("fairseq_cli.validate", toy_work / "data-bin", *options)

    # After time, level, name and epoch, the line has names and values.
    line = next(line for line in result.stdout.splitlines() if "| test |" in line)
    values = dict(part.split() for part in line.split(" | ")[4:])
    assert float(values["accuracy"]) > 0.8
    assert {"loss", "gen", "align", "sim", "acc_fwd", "acc_bwd"} <= values.keys()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "smlm", "xtr", "mlm_xtr"])
def test_the_generative_loss_of_an_objective_falls_and_terms_of_weight_zero_are_not_logged(
    tmp_path, toy_work, objective
):
    options = {"objective": objective, "align_weight": "0", "sim_weight": "0", "log_interval": "5"}

    output = train(toy_work / "data-bin", tmp_path, "--no-save", **options, max_epoch="2").stdout

    losses = []
    for line in output.splitlines():
        if "train_inner" in line:
            losses.append(float(line.split(" gen=")[1].split(",")[0]))
    assert losses[-1] < 0.9 * losses[0]
    assert "align=" not in output
    assert "sim=" not in output


@pytest.mark.slow
def test_training_without_the_generative_loss_finds_translations(tmp_path, toy_work):
    """With cosines, a small weight of sim, and products in bfloat16."""
    options = {
        **COSINES,
        "sim_weight": "0.01",
        "max_epoch": "3",
        "encoder_layers": "1",
        "cpu_precision": "bfloat16",
    }

    result = train(toy_work / "data-bin", tmp_path, "--no-save", **options)

    # Of 32 pairs in a batch; chance is 0.03.
    assert validations(result)[-1] > 0.3
    assert not validations(result, "gen")


@pytest.mark.slow
def test_new_gated_layers_leave_the_embeddings_of_a_static_model_unchanged(tmp_path, toy_work):
    data = toy_work / "data-bin"
    options = COSINES | {"sim_weight": "0"}
    train(data, tmp_path / "static", "--gated", **options, encoder_layers="0", max_epoch="4")

    # A layer and weights for the order of words are added, and hardly trained: the rate is 1e-9.
    flags = ["--gated", "--order-coefficients", "2", "--hard-negatives", "both"]
    flags += ["--finetune-from-model", tmp_path / "static" / "checkpoint_last.pt"]
    options |= {"lr": "1e-9", "encoder_layers": "1", "max_epoch": "1"}
    result = train(data, tmp_path / "gated", *flags, **options)

    assert validations(result)[-1] > 0.8
    for name in ("static", "gated"):
        export(tmp_path / name / "checkpoint_last.pt", tmp_path / f"{name}.model")
    static = SentenceEncoder.from_pretrained(tmp_path / "static.model")
    gated = SentenceEncoder.from_pretrained(tmp_path / "gated.model")
    assert gated.config["encoder"]["num_layers"] == 1
    sentences = ["One red dog sees the cat.", "Le chien."]
    expected = static.encode(sentences, normalize=True)
    np.testing.assert_allclose(gated.encode(sentences, normalize=True), expected, atol=1e-3)
    # A model with new layers can be exported.
    for form in ("sentence-transformers", "onnx"):
        lxsr_here("export", form, "--model", tmp_path / "gated.model", "--output", tmp_path / form)


@pytest.mark.slow
def test_export_with_ema_has_the_average_of_the_weights(tmp_path, toy_work):
    """The card names its decay."""
    data = toy_work / "data-bin"
    train(data, tmp_path / "run", "--store-ema", ema_decay="0.9", max_epoch="2")
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"

    export(checkpoint, tmp_path / "last")
    export(checkpoint, tmp_path / "average", "--ema")

    last = SentenceEncoder.from_pretrained(tmp_path / "last")
    average = SentenceEncoder.from_pretrained(tmp_path / "average")
    table = average.model.state_dict()["embed_tokens.weight"].numpy()
    expected = read_checkpoint(checkpoint)["extra_state"]["ema"]["encoder.embed_tokens.weight"]
    np.testing.assert_array_equal(table, expected)
    assert not np.array_equal(table, last.model.state_dict()["embed_tokens.weight"].numpy())
    assert average.encode(["One red dog."]).shape == (1, 32)
    assert "| 0.9 |" in (tmp_path / "average" / "README.md").read_text()


def test_export_with_ema_is_refused_for_a_training_without_it(tmp_path, toy_checkpoint):
    result = export(toy_checkpoint, tmp_path / "model", "--ema", check=False)

    refused(result, "--store-ema")


@pytest.mark.slow
def test_embeddings_from_latent_semantic_indexing_find_translations_without_training(
    tmp_path, toy_work
):
    """A run that resumes does not compute them again."""
    options = {
        "arch": "lxsr_best",
        "encoder_embed_dim": "32",
        "objective": "none",
        "gen_weight": "0",
        # Hardly any training.
        "lr": "1e-9",
    }
    data = toy_work / "data-bin"

    random = train(data, tmp_path / "random", **options, init_embeddings="random", max_epoch="1")
    options["init_embeddings"] = "lsi"
    lsi = train(data, tmp_path / "lsi", **options, max_epoch="1")
    resumed = train(data, tmp_path / "lsi", **options, max_epoch="2")

    assert validations(lsi)[-1] > validations(random)[-1] + 0.3
    assert "latent semantic indexing" in lsi.stdout
    assert "latent semantic indexing" not in resumed.stdout
    assert validations(resumed)[-1] == pytest.approx(validations(lsi)[-1])


@pytest.mark.slow
def test_float16_trains_and_resumes_close_to_float32(tmp_path, toy_work):
    """Without a GPU, fairseq has parameters and activations in float16, and losses in float32."""

    def losses(name, *flags, epochs):
        folder = tmp_path / name
        flags = ("--no-epoch-checkpoints", *flags)
        result = train(toy_work / "data-bin", folder, *flags, max_epoch=str(epochs))
        return validations(result, "loss")

    float32 = losses("float32", epochs=2)
    # The second run resumes the first.
    float16 = losses("float16", "--memory-efficient-fp16", epochs=1)
    float16 += losses("float16", "--memory-efficient-fp16", epochs=2)

    assert len(float16) == len(float32) == 2
    assert float16 == pytest.approx(float32, rel=0.02)


@pytest.fixture(scope="module")
def help_of_fairseq_train():
    options = ["--task", "xling_sent", "--arch", "lxsr_base", "--criterion", "xling_sent_loss"]
    # The plugin adds to the help when it is imported.
    result = run(
        "fairseq_cli.train", "--user-dir", "fairseq_lxsr", *options, "--help", preloaded=FAIRSEQ
    )
    return result.stdout


def test_the_help_of_fairseq_train_has_options_of_all_parts_with_their_defaults(
    help_of_fairseq_train,
):
    text = " ".join(help_of_fairseq_train.split())

    # Of the task, of the model and of the criterion.
    for option in (
        "--lang-pairs",
        "--objective",
        "--max-positions",
        "--sampling-temperature",
        "--encoder-layers",
        "--align-weight",
        "--cpu-precision",
        "--init-branches {random,zero}",
        "--embed-lr-scale",
    ):
        assert option in text
    assert text.count("(default: ") >= 20


def test_the_help_of_fairseq_train_has_the_options_of_the_task_before_all_others(
    help_of_fairseq_train,
):
    """Those of other tasks and of fairseq follow."""
    parts = ("--task xling_sent:", "--objective", "--lang-pairs", "--task sent_con", "usage: ")

    positions = [help_of_fairseq_train.index(part) for part in parts]

    assert positions == sorted(positions)


def test_the_help_of_fairseq_train_has_an_option_of_several_tasks_once_for_each(
    help_of_fairseq_train,
):
    text = " ".join(help_of_fairseq_train.split())

    # All three tasks of the package have it.
    assert text.count("--max-positions MAX_POSITIONS") == 3


@pytest.mark.slow
def test_several_language_pairs_share_one_model(tmp_path):
    pairs = toy.sentences(900)
    toy.write(tmp_path / "text.en-fr", pairs[:600], ("en", "fr"))
    upper_case = [(english, french.upper()) for english, french in pairs[600:]]
    toy.write(tmp_path / "text.en-xx", upper_case, ("en", "xx"))
    work = tmp_path / "work"
    command = ["prepare", "--work", work, "--data", tmp_path / "text.{pair}"]
    command += ["--lang-pairs", "en-fr,en-xx", "--vocab-size", 200]
    lxsr(*command, "--valid-size", 30, "--test-size", 30)

    options = {"lang_pairs": "en-fr,en-xx", "sampling_temperature": "5", "max_epoch": "1"}
    output = train(work / "data-bin", tmp_path, "--no-save", **options).stdout

    assert "en-fr, en-xx" in output
    # Of 600 and 300 pairs, 60 each are held out.
    assert "train: 780 pairs" in output


def test_the_default_batch_has_128_pairs(toy_work):
    options = ["--cpu", "--no-save", "--max-update", 3]
    for name, value in TRAIN_OPTIONS.items():
        if name != "--batch-size":
            options += [name, value]

    result = run("fairseq_cli.train", toy_work / "data-bin", *options)
    assert "max sentences per device = 128" in result.stdout
