"""The main job through the real commands: prepare, train, validate, export, embed, evaluate."""

import numpy as np
import pytest
import toy
from conftest import TRAIN_OPTIONS, export, lxsr, lxsr_here, refused, run, train, validations
from forks import FAIRSEQ

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.checkpoint import read_checkpoint
from fairseq_lxsr.evaluation.score import read_scores

COSINES = {"objective": "none", "align_similarity": "cosine", "align_temperature": "0.1"}


def test_trained_encoder_finds_translations_and_an_untrained_one_does_not(
    toy_work, toy_model, tmp_path
):
    test = toy_work / "corpus" / "en-fr" / "test"
    scores = {}
    for name, model in (("trained", toy_model), ("untrained", f"{toy_model}#untrained")):
        output = tmp_path / f"{name}.jsonl"
        files = ("--source", f"{test}.en", "--target", f"{test}.fr", "--metric", "nn")
        done = lxsr("eval", "xsr", "--model", model, *files, "--output", output)
        scores[name] = read_scores(output)
        assert all(score.signature in done.stdout for score in scores[name])
        found = [(score.task, score.settings["queries"]) for score in scores[name]]
        assert found == [("source->target", 200), ("target->source", 200)]
    for trained, untrained in zip(scores["trained"], scores["untrained"], strict=True):
        assert trained.values["P@1"] > 80
        assert untrained.values["P@1"] < 20
        assert trained.values["P@10"] >= trained.values["P@5"]


def test_validate_reads_the_checkpoint(toy_work, toy_checkpoint):
    kinds = (
        "--user-dir",
        "fairseq_lxsr",
        "--task",
        "xling_sent",
        "--cpu",
        "--log-format",
        "simple",
    )
    options = ("--path", toy_checkpoint, "--valid-subset", "test", "--batch-size", 32)
    done = run("fairseq_cli.validate", toy_work / "data-bin", *kinds, *options)
    line = next(line for line in done.stdout.splitlines() if "| test |" in line)
    values = dict(part.split() for part in line.split(" | ")[4:])
    assert float(values["accuracy"]) > 0.8
    assert {"loss", "gen", "align", "sim", "acc_fwd", "acc_bwd"} <= values.keys()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "smlm", "xtr", "mlm_xtr"])
def test_every_objective_trains(tmp_path, toy_work, objective):
    """The loss falls below what the first updates had; align and sim are left out and not
    logged.
    """
    options = {"objective": objective, "align_weight": "0", "sim_weight": "0", "log_interval": "5"}
    done = train(toy_work / "data-bin", tmp_path, "--no-save", **options, max_epoch="2")
    lines = [line for line in done.stdout.splitlines() if "train_inner" in line]
    first, last = (float(line.split(" gen=")[1].split(",")[0]) for line in (lines[0], lines[-1]))
    assert last < 0.9 * first
    assert "align=" not in done.stdout
    assert "sim=" not in done.stdout


@pytest.mark.slow
def test_options_beyond_the_paper_train(tmp_path, toy_work):
    options = {
        **COSINES,
        "sim_weight": "0.01",
        "max_epoch": "3",
        "encoder_layers": "1",
        "cpu_precision": "bfloat16",
    }
    done = train(toy_work / "data-bin", tmp_path, "--no-save", **options)
    assert validations(done)[-1] > 0.3
    assert not validations(done, "gen")


@pytest.mark.slow
def test_gated_layers_grow_on_a_trained_static_model(tmp_path, toy_work):
    """The layers are added to what was learnt without them, and the folder is as good as any
    other.
    """
    data, options = toy_work / "data-bin", COSINES | {"sim_weight": "0"}
    train(data, tmp_path / "static", "--gated", **options, encoder_layers="0", max_epoch="4")
    start = tmp_path / "static" / "checkpoint_last.pt"
    beyond = (
        "--gated",
        "--order-coefficients",
        "2",
        "--hard-negatives",
        "both",
        "--finetune-from-model",
        start,
    )
    done = train(
        data,
        tmp_path / "grown",
        *beyond,
        **options | {"lr": "1e-9"},
        encoder_layers="1",
        max_epoch="1",
    )
    models = []
    for name in ("static", "grown"):
        export(tmp_path / name / "checkpoint_last.pt", tmp_path / f"{name}.model")
        models.append(SentenceEncoder.from_pretrained(tmp_path / f"{name}.model"))
    sentences = ["One red dog sees the cat.", "Le chien."]
    static, grown = (model.encode(sentences, normalize=True) for model in models)
    np.testing.assert_allclose(static, grown, atol=1e-3)
    assert models[1].config["encoder"]["num_layers"] == 1
    assert validations(done)[-1] > 0.8
    for form in ("sentence-transformers", "onnx"):
        lxsr_here("export", form, "--model", tmp_path / "grown.model", "--output", tmp_path / form)


@pytest.mark.slow
def test_the_average_of_the_weights(tmp_path, toy_work, toy_checkpoint):
    """`--ema` gives the weights that fairseq averaged, not the last ones."""
    data = toy_work / "data-bin"
    train(data, tmp_path / "run", "--store-ema", ema_decay="0.9", max_epoch="2")
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    average = read_checkpoint(checkpoint)["extra_state"]["ema"]
    models = {}
    for name, flags in (("last", ()), ("average", ("--ema",))):
        export(checkpoint, tmp_path / name, *flags)
        models[name] = SentenceEncoder.from_pretrained(tmp_path / name)
    tables = {
        name: model.model.state_dict()["embed_tokens.weight"].numpy()
        for name, model in models.items()
    }
    np.testing.assert_array_equal(tables["average"], average["encoder.embed_tokens.weight"])
    assert not np.array_equal(tables["last"], tables["average"])
    assert models["average"].encode(["One red dog."]).shape == (1, 32)
    assert "| 0.9 |" in (tmp_path / "average" / "README.md").read_text()
    refused(export(toy_checkpoint, tmp_path / "none", "--ema", check=False), "--store-ema")


@pytest.mark.slow
def test_embeddings_begin_where_the_text_puts_them(tmp_path, toy_work):
    """Indexing alone finds translations that random embeddings do not; going on from a checkpoint
    leaves it out.
    """
    options = {
        "arch": "lxsr_best",
        "encoder_embed_dim": "32",
        "objective": "none",
        "gen_weight": "0",
        "lr": "1e-9",
    }
    data = toy_work / "data-bin"
    inits = ("lsi", "random")
    done = {
        init: train(data, tmp_path / init, **options, init_embeddings=init, max_epoch="1")
        for init in inits
    }
    accuracy = {init: validations(run)[-1] for init, run in done.items()}
    assert accuracy["lsi"] > accuracy["random"] + 0.3
    assert "latent semantic indexing" in done["lsi"].stdout
    more = train(data, tmp_path / "lsi", **options, init_embeddings="lsi", max_epoch="2")
    assert "latent semantic indexing" not in more.stdout
    assert validations(more)[-1] == pytest.approx(accuracy["lsi"])


@pytest.mark.slow
def test_float16_trains_and_resumes_close_to_float32(tmp_path, toy_work):
    """fairseq's float16 without a GPU: parameters and activations in half precision, losses in
    float32.
    """

    def losses(name, *flags, epochs):
        done = train(
            toy_work / "data-bin",
            tmp_path / name,
            *flags,
            "--no-epoch-checkpoints",
            max_epoch=str(epochs),
        )
        return validations(done, "loss")

    whole = losses("whole", epochs=2)
    half = losses("half", "--memory-efficient-fp16", epochs=1)
    half += losses("half", "--memory-efficient-fp16", epochs=2)
    assert len(half) == len(whole) == 2
    assert half == pytest.approx(whole, rel=0.02)


def test_help_lists_every_option_with_its_text():
    kinds = ("--task", "xling_sent", "--arch", "lxsr_base", "--criterion", "xling_sent_loss")
    # the plugin adds to the help at import
    done = run(
        "fairseq_cli.train", "--user-dir", "fairseq_lxsr", *kinds, "--help", preloaded=FAIRSEQ
    )
    text = " ".join(done.stdout.split())
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
    # own options come first: before those of fairseq, and of all tasks
    places = [
        done.stdout.index(name)
        for name in ("--task xling_sent:", "--objective", "--lang-pairs", "--task sent_con")
    ]
    assert sorted(places) == places
    assert places[-1] < done.stdout.index("usage: ")
    # of each task: none hides those of another
    assert text.count("--max-positions MAX_POSITIONS") == 3


@pytest.mark.slow
def test_several_language_pairs_share_one_model(tmp_path):
    pairs = toy.sentences(900)
    toy.write(tmp_path / "text.en-fr", pairs[:600], ("en", "fr"))
    toy.write(tmp_path / "text.en-xx", [(en, fr.upper()) for en, fr in pairs[600:]], ("en", "xx"))
    work = tmp_path / "work"
    options = (
        "--lang-pairs",
        "en-fr,en-xx",
        "--valid-size",
        30,
        "--test-size",
        30,
        "--vocab-size",
        200,
    )
    lxsr("prepare", "--work", work, "--data", tmp_path / "text.{pair}", *options)
    options = {"lang_pairs": "en-fr,en-xx", "sampling_temperature": "5", "max_epoch": "1"}
    done = train(work / "data-bin", tmp_path, "--no-save", **options)
    assert "en-fr, en-xx" in done.stdout
    assert "train: 780 pairs" in done.stdout


def test_default_batch_is_128_pairs(tmp_path, toy_work):
    options = [
        word
        for name, value in TRAIN_OPTIONS.items()
        if name != "--batch-size"
        for word in (name, value)
    ]
    done = run(
        "fairseq_cli.train",
        toy_work / "data-bin",
        "--cpu",
        "--no-save",
        "--max-update",
        3,
        *options,
    )
    assert "max sentences per device = 128" in done.stdout
