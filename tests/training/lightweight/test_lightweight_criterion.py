"""The criterion on a small model: what it adds up, what it leaves out, and that nothing waits for
the device.
"""

from dataclasses import MISSING, fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.logging import metrics
from operations import SYNCHRONISE, Operations
from pair_batches import EOS, MASK, PAD, VOCABULARY, corpus

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.modules import TransformerConfig, TransformerSentenceEncoder
from fairseq_lxsr.training.lightweight.criterion import XlingSentLoss
from fairseq_lxsr.training.lightweight.dataset import SentencePairDataset
from fairseq_lxsr.training.lightweight.model import LxsrModel, LxsrModelConfig
from fairseq_lxsr.training.lightweight.parts.masking import MaskedTargets, Masking
from fairseq_lxsr.training.lightweight.task import XlingSentConfig
from fairseq_lxsr.training.lightweight.terms import Setting, build_terms
from fairseq_lxsr.training.lightweight.terms.generative import MASKING_OF_OBJECTIVE

VOCAB = MASK + 1
OBJECTIVES = ["ugt", "xtr", "smlm", "mlm", "mlm_xtr"]


DICTIONARY = Dictionary()
for number in range(VOCAB - len(DICTIONARY)):
    DICTIONARY.add_symbol(str(number))


def make_task(**options):
    """What model and criterion read of a task, with the terms that its options ask for."""
    defaults = {
        item.name: item.default for item in fields(XlingSentConfig) if item.default is not MISSING
    }
    cfg = SimpleNamespace(**(defaults | {"batch_size": 8, "batch_size_valid": 8} | options))
    terms = build_terms(cfg, Setting(VOCABULARY, [("x", "y")]))
    return SimpleNamespace(source_dictionary=DICTIONARY, target_dictionary=None, terms=terms)


def make_teacher(folder, width=5):
    """A folder with the embeddings of a teacher."""
    np.save(folder / "train.x-y.x.npy", np.ones((6, width), dtype=np.float32))
    return str(folder)


def make_model(**options):
    torch.manual_seed(0)
    config = TransformerConfig(VOCAB, PAD, embed_dim=16, ffn_embed_dim=32, num_heads=2, dropout=0.0)
    return LxsrModel(TransformerSentenceEncoder(config), make_task(**options).terms)


def build_model(**options):
    """As fairseq-train does."""
    cfg = LxsrModelConfig()
    sizes = {
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "max_positions": 50,
    }
    of_model = {name: value for name, value in options.items() if hasattr(cfg, name)}
    for name, value in (sizes | of_model).items():
        setattr(cfg, name, value)
    return LxsrModel.build_model(cfg, make_task(**options))


def make_criterion(**options):
    return XlingSentLoss(make_task(**options))


def make_batch(objective="ugt", pairs=6, extra=0, rows=None, masked_targets=False):
    """A batch from the real dataset; `extra` adds that much padding, `rows` picks and orders the
    pairs.
    """
    parts = [] if objective == "none" else [Masking(MASKING_OF_OBJECTIVE[objective], VOCABULARY)]
    parts += [MaskedTargets()] * masked_targets
    text = [corpus("x-y", pairs, longest=9)]
    data = SentencePairDataset(text, parts, padding_idx=PAD, eos_idx=EOS, max_positions=200)
    batch = data.collater([data[index] for index in (range(pairs) if rows is None else rows)])
    if extra:
        for holder in (batch, batch["net_input"]):
            for name in ("source", "target", "source_tokens", "target_tokens"):
                if name in holder:
                    width = holder[name].shape[1]
                    holder[name] = F.pad(holder[name], (0, extra), value=PAD)
                    positions = f"{name}_positions"
                    if positions in batch and holder is batch["net_input"]:
                        batch[positions] = (
                            batch[positions] // width * (width + extra) + batch[positions] % width
                        )
    return batch


def slow_generative_loss(model, batch, objective, weighting):
    """The table of the paper, one pass, one pair, one vocabulary entry at a time."""
    total = torch.zeros(())
    masked_ids = [batch["source_masked_ids"], batch["target_masked_ids"]]
    whole = [batch["source_tokens"], batch["target_tokens"]]
    for own, side in enumerate(("source", "target")):
        for row in range(batch["nsentences"]):
            read = batch["net_input"][side][row]
            read = read[read != PAD][None]
            [(state, states)] = model.encoder(read)
            mine = [int(piece) for piece in masked_ids[own][row] if piece != PAD]
            theirs = [int(piece) for piece in masked_ids[1 - own][row] if piece != PAD]
            words = [int(piece) for piece in whole[1 - own][row] if piece != PAD]
            if objective == "mlm":
                original = [int(piece) for piece in whole[own][row] if piece != PAD]
                positions = mlm_positions(batch, side, row)
                assert sorted(original[position] for position in positions) == sorted(mine)
                for position in positions:
                    log_p = model.head(
                        states[0, position][None], model.encoder.embed_tokens.weight
                    )[0].log_softmax(0)
                    total = total - log_p[original[position]] / len(positions)
                continue
            q = {(mine + theirs)[0]: 1.0} if objective == "smlm" else {}
            if objective != "smlm":
                share = 0.5 if mine and objective != "xtr" else 0.0
                for word in set(words):
                    count = words.count(word) if weighting == "counts" else 1
                    q[word] = (1 - share) * count / len(words)
                for piece in mine if share else []:
                    q[piece] = q.get(piece, 0) + share / len(mine)
            log_p = model.head(state, model.encoder.embed_tokens.weight)[0].log_softmax(0)
            for word, mass in q.items():
                total = total + mass * (np.log(mass) - log_p[word])
    return total


def mlm_positions(batch, side, row):
    width = batch[f"{side}_tokens"].shape[1]
    return [
        position - row * width
        for position in batch[f"{side}_positions"].tolist()
        if position // width == row
    ]


@pytest.mark.parametrize("weighting", ["types", "counts"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_generative_loss_equals_the_table_written_out(objective, weighting):
    options = {
        "objective": objective,
        "target_weights": weighting,
        "align_weight": 0,
        "sim_weight": 0,
    }
    model, batch, criterion = (
        make_model(**options),
        make_batch(objective),
        make_criterion(**options),
    )
    loss, _, _ = criterion(model, batch)
    expected = slow_generative_loss(model, batch, objective, weighting)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    fast = torch.autograd.grad(loss, parameters, allow_unused=True)
    slow = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_total_is_the_weighted_sum():
    model, batch = make_model(), make_batch()
    loss, pairs, logged = make_criterion(gen_weight=3.0, align_weight=0.5, sim_weight=7.0)(
        model, batch
    )
    assert pairs == 6
    gen, align, sim = (logged[name].item() for name in ("gen", "align", "sim"))
    assert loss.item() == pytest.approx(3 * gen + 0.5 * align + 7 * sim)
    u, v = (model.encoder(batch["net_input"][side])[0][0] for side in ("source", "target"))
    assert align == pytest.approx(losses.alignment_loss(u, v).item(), rel=1e-5)
    assert sim == pytest.approx(losses.similarity_loss(u, v).item(), rel=1e-5)
    _, _, plain = make_criterion()(model, batch)
    # does not divide by the pairs
    _, _, released = make_criterion(sim_reduction="sum")(model, batch)
    assert released["sim"].item() == pytest.approx(6 * plain["sim"].item())
    assert released["align"].item() == plain["align"].item()


def test_similarity_temperature_and_hard_negatives_reach_the_loss():
    options = {"objective": "none", "sim_weight": 0, "hard_negatives": "swap"}
    options |= {"align_similarity": "cosine", "align_temperature": 0.1}
    model, batch = make_model(**options), make_batch("none")
    batch["net_input"]["negative"] = batch["net_input"]["source"].flip(0)
    batch["negative_of"] = torch.tensor([[True, False], [True, False], [False, True]] * 2)
    loss, _, logged = make_criterion(**options)(model, batch)
    u, v, negative = (
        model.encoder(batch["net_input"][name])[0][0] for name in ("source", "target", "negative")
    )
    negatives = losses.Negatives(negative, batch["negative_of"])
    expected = losses.alignment_loss(u, v, similarity="cosine", scale=10, negatives=negatives)
    torch.testing.assert_close(logged["align"], expected.detach())
    torch.testing.assert_close(loss, 2 * expected)


@pytest.mark.parametrize(
    ("objective", "of_pair"),
    [("ugt", 1), ("xtr", 0), ("smlm", 1), ("mlm", None), ("mlm_xtr", None)],
)
def test_what_an_objective_masks(objective, of_pair):
    """Nothing (Mao et al. 2021, Eq. 2), one piece of a pair (Eq. 1), or some of either sentence."""
    batch = make_batch(objective)
    masked = torch.stack(
        [(batch[f"{side}_masked_ids"] != PAD).sum(dim=1) for side in ("source", "target")]
    )
    if of_pair is None:
        assert (masked >= 1).all()
    else:
        assert (masked.sum(dim=0) == of_pair).all()


@pytest.mark.parametrize(("target_ids", "masks"), [("original", "none"), ("masked", "one")])
def test_xtr_masks_nothing_unless_it_follows_the_released_code(target_ids, masks):
    """Eq. 2 reads whole sentences; the released code has masked the pair before (dataset.py)."""
    terms = make_task(objective="xtr", target_ids=target_ids).terms
    [masking, *_] = next(term for term in terms if term.name == "gen").parts("train")
    assert masking.kind == masks


RELEASED = {"sim_reduction": "sum", "target_ids": "masked", "target_overlap": "translation"}


def released_total(model, batch):
    """Their total with torch's own losses, targets written into [B, V] one after the other
    (bertModel.py, 455-493).
    """
    sides = [batch["net_input"][side] for side in ("source", "target")]
    u, v = (model.encoder(read)[0][0] for read in sides)
    total = torch.zeros(())
    for own, (state, other) in enumerate(((u, sides[1]), (v, sides[0]))):
        q = torch.zeros(len(state), VOCAB)
        for row, masked in enumerate(masked_of(batch, own)):
            read, half = other[row][other[row] != PAD], 0.5 if masked != PAD else 1
            if masked != PAD:
                q[row, masked] = 0.5
            q[row].index_fill_(0, read, half / len(read))
        log_p = model.head(state, model.encoder.embed_tokens.weight).log_softmax(dim=1)
        total = total + F.kl_div(log_p, q, reduction="batchmean")
    pairs = torch.arange(len(u))
    total = total + 2 * (F.cross_entropy(u @ v.T, pairs) + F.cross_entropy(v @ u.T, pairs))
    difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)
    return total - 2 * torch.cos(difference * np.pi / 2).log().sum()


def masked_of(batch, side):
    """[B] masked source ids (0) or target ids (1)."""
    return batch[("source_masked_ids", "target_masked_ids")[side]][:, 0]


def test_total_of_the_released_code():
    model, batch = make_model(**RELEASED), make_batch(masked_targets=True)
    side, row = next(
        (side, row) for side in (0, 1) for row in range(6) if masked_of(batch, side)[row] != PAD
    )
    translation = batch["net_input"]["target" if side == 0 else "source"]
    # a masked word that is also in the translation
    translation[row, 0] = masked_of(batch, side)[row]
    loss, pairs, _ = make_criterion(**RELEASED)(model, batch)
    expected = released_total(model, batch)
    torch.testing.assert_close(loss / pairs, expected, rtol=1e-5, atol=1e-5)
    weights = list(model.parameters())
    ours, theirs = (torch.autograd.grad(each, weights) for each in (loss / pairs, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    for name in ("sim_reduction", "target_overlap"):
        other, _, _ = make_criterion(
            **{key: value for key, value in RELEASED.items() if key != name}
        )(model, batch)
        assert (other - loss).abs() > 1e-3, name


def test_initial_weights_are_an_option_of_the_model():
    layers = build_model(init_weights="released").encoder.layers
    assert torch.equal(layers[0].fc1.weight, layers[1].fc1.weight)
    assert not torch.equal(*(layer.fc1.weight for layer in build_model().encoder.layers))
    assert build_model(layer_norm_eps=1e-12).head.layer_norm.eps == 1e-12
    with pytest.raises(InputError, match="--init-weights released does not support --gated"):
        build_model(init_weights="released", gated=True)


@pytest.mark.parametrize("options", [{}, {"gated": True}, {"init_weights": "released"}])
def test_branches_may_start_at_zero(options):
    models = []
    for branches in ("zero", "random"):
        torch.manual_seed(0)
        models.append(build_model(init_branches=branches, **options).state_dict())
    zero, random = models
    for name, value in random.items():
        if ".out_proj." in name or ".fc2." in name:
            assert not zero[name].any()
        elif name.endswith(".gates"):
            assert (zero[name] == 1).all()
        else:
            assert torch.equal(zero[name], value), name
    assert random["encoder.layers.1.fc2.weight"].any()


def test_masked_targets_are_what_the_other_side_reads():
    plain, masked = make_batch(), make_batch(masked_targets=True)
    for side in ("source", "target"):
        assert torch.equal(masked[f"{side}_tokens"], plain["net_input"][side])
        assert torch.equal(masked["net_input"][side], plain["net_input"][side])
    assert sum((masked[f"{side}_tokens"] == MASK).sum() for side in ("source", "target")) == 6
    for target_ids, parts in (("original", 1), ("masked", 2)):
        [term] = make_task(target_ids=target_ids, align_weight=0, sim_weight=0).terms
        assert len(term.parts(None)) == parts


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_and_batch_order_change_nothing_and_no_operation_of_a_step_waits_for_the_device(
    objective,
):
    model, criterion = make_model(objective=objective), make_criterion(objective=objective)
    batch = make_batch(objective)
    with Operations() as operations:
        plain = criterion(model, batch)[0]
        plain.backward()
    assert not SYNCHRONISE & {name for name, _ in operations.calls}
    torch.testing.assert_close(
        plain, criterion(model, make_batch(objective, extra=5))[0], rtol=1e-5, atol=1e-4
    )
    order = np.array([3, 1, 5, 0, 4, 2])
    torch.testing.assert_close(
        plain, criterion(model, make_batch(objective, rows=order))[0], rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"gen_weight": 0}, lambda name, shape: shape and shape[-1] == VOCAB),
        ({"align_weight": 0}, lambda name, shape: "nll_loss" in name),
        ({"sim_weight": 0}, lambda name, shape: name.endswith("::cos")),
    ],
)
def test_a_weight_of_zero_computes_nothing(options, absent):
    batch = make_batch()

    def calls(**options):
        model = make_model(**options)
        with Operations() as operations, torch.no_grad():
            logged = make_criterion(**options)(model, batch)[2]
        return any(absent(*call) for call in operations.calls), logged

    assert calls()[0]  # the check can fail
    computed, logged = calls(**options)
    assert not computed
    assert next(iter(options)).removesuffix("_weight") not in logged


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_get_float32_losses(dtype):
    model, batch = make_model(), make_batch()
    expected = make_criterion()(model, batch)[0]
    loss = make_criterion()(model.to(dtype), batch)[0]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "none"},
        {"gen_weight": 0.0},
        {"distill_loss": "similarity"},
        {"objective": "none", "align_weight": 0.0, "sim_weight": 0.0},
    ],
)
@pytest.mark.parametrize("has_teacher", [True, False])
def test_every_weight_of_the_model_has_a_gradient(options, has_teacher, tmp_path):
    """Several GPUs wait for all of them, on batches of validation, which may have no teacher,
    too.
    """
    options = {"teacher_embeddings": make_teacher(tmp_path), **options}
    model = build_model(**options)
    batch = make_batch(options.get("objective", "ugt")) | (
        {"teacher": torch.randn(12, 5)} if has_teacher else {}
    )
    loss, _, logged = make_criterion(**options)(model, batch)
    loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert "distill" in logged


@pytest.mark.parametrize("form", losses.DISTILL_LOSSES)
def test_distillation_is_the_mean_of_both_sides(form, tmp_path):
    torch.manual_seed(1)
    teacher = torch.randn(12, 5)
    options = {"teacher_embeddings": make_teacher(tmp_path), "distill_loss": form}
    options |= {"gen_weight": 0, "align_weight": 0, "sim_weight": 0}
    model, criterion = make_model(**options), make_criterion(**options)
    batch = make_batch() | {"teacher": teacher}
    loss, _, logged = criterion(model, batch)
    student = torch.cat(
        [model.encoder(batch["net_input"][side])[0][0] for side in ("source", "target")]
    )
    if form != "similarity":
        student = student @ model.projection.weight.T
    expected = losses.distillation_loss(student, teacher, form) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logged["distill"], expected)
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not SYNCHRONISE & {name for name, _ in operations.calls}
    assert "distill" not in criterion(model.eval(), make_batch())[2]


@pytest.mark.parametrize("widths", ["4,8", "8,4", "16,8,4"])
def test_matryoshka_adds_up_the_losses_of_all_widths_and_the_full_one(widths):
    """In any order, from one pass of the encoder, whose other losses stay as they are."""
    model, batch = make_model(), make_batch()
    _, _, plain = make_criterion()(model, batch)
    with Operations() as operations:
        loss, _, logged = make_criterion(matryoshka=widths)(model, batch)
        loss.backward()
    assert not SYNCHRONISE & {name for name, _ in operations.calls}
    u, v = (model.encoder(batch["net_input"][side])[0][0] for side in ("source", "target"))
    expected = sum(losses.alignment_loss(u[:, :width], v[:, :width]) for width in (4, 8, 16))
    torch.testing.assert_close(logged["align"], expected.detach())
    assert (logged["gen"], logged["sim"]) == (plain["gen"], plain["sim"])


NOTHING = {"align_weight": 0, "sim_weight": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NOTHING | {"gen_weight": 0}, "--objective ugt, --gen-weight 0, --align-weight 0"),
        (NOTHING | {"objective": "none"}, "--objective none, --gen-weight 1, --align-weight 0"),
        ({"gather_negatives": True, "batch_size": None}, "--batch-size"),
        (
            {"gather_negatives": True, "batch_size_valid": 9},
            "--batch-size-valid 9 exceeds --batch-size 8",
        ),
        (
            {"align_weight": 0, "gather_negatives": True},
            "--gather-negatives has no effect with --align-weight 0",
        ),
        (
            {"hard_negatives": "swap", "objective": "none", "align_weight": 0},
            "--hard-negatives has no effect with --align-weight 0",
        ),
        (
            {"matryoshka": "8", "align_weight": 0},
            "--matryoshka has no effect with --align-weight 0",
        ),
        ({"distill_loss": "similarity"}, "--distill-loss similarity requires --teacher-embeddings"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_criterion(**options)


def test_widths_of_matryoshka_outside_their_range_or_beyond_the_model():
    widths = next(item for item in fields(XlingSentConfig) if item.name == "matryoshka").metadata[
        "range"
    ]
    for outside in ("", "0", "4,4", "4;8", "4,", "-4", "1.5", "70000", "x"):
        assert outside not in widths
    with pytest.raises(InputError, match=r"--matryoshka 8,17.* 16"):
        build_model(matryoshka="17,8")


def test_metrics_are_means_per_pair_over_batches_of_different_size():
    logged = []
    for loss, forward, backward, pairs in ((6.0, 2.0, 1.0, 2), (2.0, 1.0, 2.0, 6)):
        values = {"loss": loss, "gen": loss, "acc_fwd": forward, "acc_bwd": backward}
        counts = {"sample_size": pairs, "nsentences": pairs, "ntokens": 9}
        logged.append({name: torch.tensor(value) for name, value in values.items()} | counts)
    with metrics.aggregate() as aggregate:
        XlingSentLoss.reduce_metrics(logged)
    values = aggregate.get_smoothed_values()
    assert (values["loss"], values["gen"], values["accuracy"]) == (1.0, 1.0, 0.375)
    assert (values["acc_fwd"], values["acc_bwd"]) == (0.375, 0.375)
    assert "align" not in values


@pytest.mark.parametrize("objective", ["ugt", "none"])
def test_the_metrics_are_those_of_validation(objective):
    criterion, model = make_criterion(objective=objective), make_model(objective=objective)
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([criterion(model.eval(), make_batch(objective))[2]])
    assert sorted(criterion.metrics) == sorted(aggregate.get_smoothed_values())
