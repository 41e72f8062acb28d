"""The criterion on a small model: its sum of losses, its options and its metrics."""

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
    """The parts of a task that model and criterion read, with the terms of its options."""
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
    """Build a model as fairseq-train does."""
    cfg = LxsrModelConfig()
    cfg.encoder_embed_dim = 16
    cfg.encoder_ffn_embed_dim = 32
    cfg.encoder_attention_heads = 2
    cfg.max_positions = 50
    for name, value in options.items():
        if hasattr(cfg, name):
            setattr(cfg, name, value)
    return LxsrModel.build_model(cfg, make_task(**options))


def embed_sides(model, batch):
    """The embeddings of sources and targets."""
    embeddings = []
    for side in ("source", "target"):
        [(sentence_vectors, _)] = model.encoder(batch["net_input"][side])
        embeddings.append(sentence_vectors)
    return embeddings


def make_criterion(**options):
    return XlingSentLoss(make_task(**options))


def make_batch(objective="ugt", pairs=6, extra=0, rows=None, masked_targets=False):
    """A batch from the real dataset.

    Args:
        objective: the objective, which the masks depend on.
        pairs: the number of pairs of the dataset.
        extra: the number of columns of padding that are added.
        rows: the pairs of the batch in their order; all by default.
        masked_targets: whether the masked sides are also the targets.
    """
    parts = []
    if objective != "none":
        parts.append(Masking(MASKING_OF_OBJECTIVE[objective], VOCABULARY))
    if masked_targets:
        parts.append(MaskedTargets())
    text = [corpus("x-y", pairs, longest=9)]
    data = SentencePairDataset(text, parts, padding_idx=PAD, eos_idx=EOS, max_positions=200)
    if rows is None:
        rows = range(pairs)
    batch = data.collater([data[row] for row in rows])
    if extra:
        add_padding(batch, extra)
    return batch


def add_padding(batch, extra):
    for name in ("source", "target"):
        batch["net_input"][name] = F.pad(batch["net_input"][name], (0, extra), value=PAD)
        tokens = f"{name}_tokens"
        if tokens in batch:
            batch[tokens] = F.pad(batch[tokens], (0, extra), value=PAD)
        # Positions count through all rows.
        positions = batch.get(f"{name}_positions")
        if positions is not None:
            width = batch["net_input"][name].shape[1] - extra
            batch[f"{name}_positions"] = positions // width * (width + extra) + positions % width


def pieces_of(row):
    return [int(piece) for piece in row if piece != PAD]


def log_probabilities(model, state):
    """The logarithms of the probabilities of all pieces, given a state [D]."""
    return model.head(state[None], model.encoder.embed_tokens.weight)[0].log_softmax(0)


def slow_generative_loss(model, batch, objective, weighting):
    """The table of the paper, with loops over sides, pairs and pieces."""
    total = torch.zeros(())
    for side, other_side in (("source", "target"), ("target", "source")):
        for row in range(batch["nsentences"]):
            read = batch["net_input"][side][row]
            [(state, states)] = model.encoder(read[read != PAD][None])
            masked = pieces_of(batch[f"{side}_masked_ids"][row])
            if objective == "mlm":
                original = pieces_of(batch[f"{side}_tokens"][row])
                positions = mlm_positions(batch, side, row)
                assert sorted(original[position] for position in positions) == sorted(masked)
                for position in positions:
                    log_p = log_probabilities(model, states[0, position])
                    total = total - log_p[original[position]] / len(positions)
                continue
            target = {}
            if objective == "smlm":
                masked_of_other_side = pieces_of(batch[f"{other_side}_masked_ids"][row])
                target[(masked + masked_of_other_side)[0]] = 1.0
            else:
                words = pieces_of(batch[f"{other_side}_tokens"][row])
                share = 0.5 if masked and objective != "xtr" else 0.0
                for word in set(words):
                    count = words.count(word) if weighting == "counts" else 1
                    target[word] = (1 - share) * count / len(words)
                if share:
                    for piece in masked:
                        target[piece] = target.get(piece, 0) + share / len(masked)
            log_p = log_probabilities(model, state[0])
            for piece, probability in target.items():
                total = total + probability * (np.log(probability) - log_p[piece])
    return total


def mlm_positions(batch, side, row):
    width = batch[f"{side}_tokens"].shape[1]
    positions = []
    for position in batch[f"{side}_positions"].tolist():
        if position // width == row:
            positions.append(position % width)
    return positions


@pytest.mark.parametrize("weighting", ["types", "counts"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_generative_loss_is_the_table_of_the_paper(objective, weighting):
    options = {
        "objective": objective,
        "target_weights": weighting,
        "align_weight": 0,
        "sim_weight": 0,
    }
    model = make_model(**options)
    batch = make_batch(objective)
    loss, _, _ = make_criterion(**options)(model, batch)
    expected = slow_generative_loss(model, batch, objective, weighting)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    expected_gradients = torch.autograd.grad(expected, weights, allow_unused=True)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


def test_the_total_is_the_weighted_sum_of_the_losses():
    model = make_model()
    batch = make_batch()
    criterion = make_criterion(gen_weight=3.0, align_weight=0.5, sim_weight=7.0)
    loss, num_pairs, logged = criterion(model, batch)
    assert num_pairs == 6
    gen = logged["gen"].item()
    align = logged["align"].item()
    sim = logged["sim"].item()
    assert loss.item() == pytest.approx(3 * gen + 0.5 * align + 7 * sim)
    u, v = embed_sides(model, batch)
    assert align == pytest.approx(losses.alignment_loss(u, v).item(), rel=1e-5)
    assert sim == pytest.approx(losses.similarity_loss(u, v).item(), rel=1e-5)


def test_the_similarity_loss_may_be_a_sum_over_the_pairs():
    model = make_model()
    batch = make_batch()
    _, _, mean = make_criterion()(model, batch)
    _, _, total = make_criterion(sim_reduction="sum")(model, batch)
    assert total["sim"].item() == pytest.approx(6 * mean["sim"].item())
    assert total["align"].item() == mean["align"].item()


def test_the_alignment_loss_has_similarity_temperature_and_hard_negatives():
    options = {"objective": "none", "sim_weight": 0, "hard_negatives": "swap"}
    options |= {"align_similarity": "cosine", "align_temperature": 0.1}
    model = make_model(**options)
    batch = make_batch("none")
    batch["net_input"]["negative"] = batch["net_input"]["source"].flip(0)
    batch["negative_of"] = torch.tensor([[True, False], [True, False], [False, True]] * 2)
    loss, _, logged = make_criterion(**options)(model, batch)
    u, v = embed_sides(model, batch)
    [(negative, _)] = model.encoder(batch["net_input"]["negative"])
    negatives = losses.Negatives(negative, batch["negative_of"])
    expected = losses.alignment_loss(u, v, similarity="cosine", scale=10, negatives=negatives)
    torch.testing.assert_close(logged["align"], expected.detach())
    torch.testing.assert_close(loss, 2 * expected)


def num_masked(batch, side):
    """The number of masked pieces of each sentence."""
    return (batch[f"{side}_masked_ids"] != PAD).sum(dim=1)


@pytest.mark.parametrize(("objective", "expected"), [("ugt", 1), ("xtr", 0), ("smlm", 1)])
def test_objectives_that_mask_at_most_one_piece_of_a_pair(objective, expected):
    """Mao et al. 2021: Eq. 1 masks one piece, Eq. 2 none."""
    batch = make_batch(objective)
    assert (num_masked(batch, "source") + num_masked(batch, "target") == expected).all()


@pytest.mark.parametrize("objective", ["mlm", "mlm_xtr"])
def test_objectives_that_mask_pieces_of_both_sentences(objective):
    batch = make_batch(objective)
    assert (num_masked(batch, "source") >= 1).all()
    assert (num_masked(batch, "target") >= 1).all()


@pytest.mark.parametrize(("target_ids", "kind"), [("original", "none"), ("masked", "one")])
def test_xtr_masks_no_piece_unless_it_follows_the_released_code(target_ids, kind):
    """Eq. 2 reads whole sentences; the released code has masked the pair before (dataset.py)."""
    terms = make_task(objective="xtr", target_ids=target_ids).terms
    [masking, *_] = next(term for term in terms if term.name == "gen").parts("train")
    assert masking.kind == kind


RELEASED = {"sim_reduction": "sum", "target_ids": "masked", "target_overlap": "translation"}


def released_generative_loss(model, batch, side, other_side):
    """The loss with targets written into [B, V] one after the other (bertModel.py, 455-493)."""
    [(state, _)] = model.encoder(batch["net_input"][side])
    target = torch.zeros(len(state), VOCAB)
    for row, masked in enumerate(masked_pieces(batch, side)):
        translation = batch["net_input"][other_side][row]
        translation = translation[translation != PAD]
        if masked != PAD:
            target[row, masked] = 0.5
            target[row].index_fill_(0, translation, 0.5 / len(translation))
        else:
            target[row].index_fill_(0, translation, 1 / len(translation))
    log_p = model.head(state, model.encoder.embed_tokens.weight).log_softmax(dim=1)
    return F.kl_div(log_p, target, reduction="batchmean")


def released_total(model, batch):
    """The total of the released code, with the losses of torch."""
    total = released_generative_loss(model, batch, "source", "target")
    total = total + released_generative_loss(model, batch, "target", "source")
    u, v = embed_sides(model, batch)
    pairs = torch.arange(len(u))
    total = total + 2 * (F.cross_entropy(u @ v.T, pairs) + F.cross_entropy(v @ u.T, pairs))
    difference = (u @ u.T).softmax(dim=1) - (v @ v.T).softmax(dim=1)
    return total - 2 * torch.cos(difference * np.pi / 2).log().sum()


def masked_pieces(batch, side):
    """The masked pieces [B] of a side, PAD for none."""
    return batch[f"{side}_masked_ids"][:, 0]


def batch_with_masked_piece_in_translation():
    """A batch in which a masked piece of a source is also in its target."""
    batch = make_batch(masked_targets=True)
    masked = masked_pieces(batch, "source")
    row = int((masked != PAD).nonzero()[0])
    batch["net_input"]["target"][row, 0] = masked[row]
    return batch


def test_released_options_give_the_total_and_gradients_of_the_released_code():
    model = make_model(**RELEASED)
    batch = batch_with_masked_piece_in_translation()

    loss, num_pairs, _ = make_criterion(**RELEASED)(model, batch)

    expected = released_total(model, batch)
    torch.testing.assert_close(loss / num_pairs, expected, rtol=1e-5, atol=1e-5)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss / num_pairs, weights)
    expected_gradients = torch.autograd.grad(expected, weights)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["sim_reduction", "target_overlap"])
def test_the_loss_differs_from_the_released_one_without_an_option(name):
    model = make_model(**RELEASED)
    batch = batch_with_masked_piece_in_translation()
    other_options = {option: value for option, value in RELEASED.items() if option != name}
    loss, _, _ = make_criterion(**RELEASED)(model, batch)
    changed_loss, _, _ = make_criterion(**other_options)(model, batch)
    assert (changed_loss - loss).abs() > 1e-3


def test_released_initial_weights_are_equal_in_all_layers():
    first, second = build_model(init_weights="released").encoder.layers
    assert torch.equal(first.fc1.weight, second.fc1.weight)


def test_default_initial_weights_differ_between_layers():
    first, second = build_model().encoder.layers
    assert not torch.equal(first.fc1.weight, second.fc1.weight)


def test_released_initial_weights_of_gated_layers_are_refused():
    with pytest.raises(InputError, match="--init-weights released does not support --gated"):
        build_model(init_weights="released", gated=True)


def test_the_head_has_the_layer_norm_eps_of_the_options():
    assert build_model(layer_norm_eps=1e-12).head.layer_norm.eps == 1e-12


@pytest.mark.parametrize("options", [{}, {"gated": True}, {"init_weights": "released"}])
def test_branches_may_start_at_zero(options):
    torch.manual_seed(0)
    zero_weights = build_model(init_branches="zero", **options).state_dict()
    torch.manual_seed(0)
    random_weights = build_model(init_branches="random", **options).state_dict()
    for name, weight in random_weights.items():
        if ".out_proj." in name or ".fc2." in name:
            assert not zero_weights[name].any()
        elif name.endswith(".gates"):
            assert (zero_weights[name] == 1).all()
        else:
            assert torch.equal(zero_weights[name], weight), name
    assert random_weights["encoder.layers.1.fc2.weight"].any()


def test_masked_targets_are_the_masked_sentences():
    original = make_batch()
    masked = make_batch(masked_targets=True)
    num_masks = 0
    for side in ("source", "target"):
        assert torch.equal(masked["net_input"][side], original["net_input"][side])
        assert torch.equal(masked[f"{side}_tokens"], original["net_input"][side])
        num_masks += (masked[f"{side}_tokens"] == MASK).sum()
    # Without masks, masked targets would equal the original ones.
    assert num_masks > 0


def test_the_option_target_ids_adds_masked_targets_to_the_batch():
    for target_ids, num_parts in (("original", 1), ("masked", 2)):
        [term] = make_task(target_ids=target_ids, align_weight=0, sim_weight=0).terms
        assert len(term.parts(None)) == num_parts


def synchronising_operations(operations):
    return SYNCHRONISE & {name for name, _ in operations.calls}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_and_the_order_of_the_pairs_change_no_loss(objective):
    model = make_model(objective=objective)
    criterion = make_criterion(objective=objective)
    expected, _, _ = criterion(model, make_batch(objective))
    padded, _, _ = criterion(model, make_batch(objective, extra=5))
    torch.testing.assert_close(padded, expected, rtol=1e-5, atol=1e-4)
    shuffled, _, _ = criterion(model, make_batch(objective, rows=[3, 1, 5, 0, 4, 2]))
    torch.testing.assert_close(shuffled, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_operation_of_a_step_waits_for_the_device(objective):
    model = make_model(objective=objective)
    criterion = make_criterion(objective=objective)
    batch = make_batch(objective)
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not synchronising_operations(operations)


# A loss, and a function that recognises one of its operations by name and shape of the result.
OPERATION_OF_LOSS = {
    "gen": lambda operation, shape: shape and shape[-1] == VOCAB,
    "align": lambda operation, shape: "nll_loss" in operation,
    "sim": lambda operation, shape: operation.endswith("::cos"),
}


def is_computed_and_logged(name, **options):
    """Whether an operation of the loss is computed, and whether its value is logged."""
    model = make_model(**options)
    with Operations() as operations, torch.no_grad():
        _, _, logged = make_criterion(**options)(model, make_batch())
    is_computed = any(OPERATION_OF_LOSS[name](*call) for call in operations.calls)
    return is_computed, name in logged


@pytest.mark.parametrize("name", OPERATION_OF_LOSS)
def test_a_loss_with_weight_zero_is_not_computed(name):
    assert is_computed_and_logged(name) == (True, True)
    assert is_computed_and_logged(name, **{f"{name}_weight": 0}) == (False, False)


of_half_precision = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@of_half_precision
def test_losses_of_half_precision_models_are_float32(dtype):
    model = make_model().to(dtype)

    loss, _, _ = make_criterion()(model, make_batch())

    assert loss.dtype == torch.float32


@of_half_precision
def test_losses_of_half_precision_models_are_close_to_those_of_float32(dtype):
    criterion = make_criterion()
    batch = make_batch()
    model = make_model()
    expected, _, _ = criterion(model, batch)

    loss, _, _ = criterion(model.to(dtype), batch)

    # Each rounding to bfloat16, of eight bits, changes a number by up to 2**-9, or 0.2 percent;
    # some of them add up in the layers.
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
    """Several GPUs wait for all gradients; batches of validation may have no teacher."""
    options = {"teacher_embeddings": make_teacher(tmp_path), **options}
    model = build_model(**options)
    batch = make_batch(options.get("objective", "ugt"))
    if has_teacher:
        batch["teacher"] = torch.randn(12, 5)

    loss, _, logged = make_criterion(**options)(model, batch)
    loss.backward()

    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
    # In training, this loss is logged even if the batch has no teacher.
    assert "distill" in logged


@pytest.fixture
def distillation_only(tmp_path):
    """The options of a task whose only loss is that of a teacher of width 5."""
    options = {"teacher_embeddings": make_teacher(tmp_path, width=5)}
    return options | {"gen_weight": 0, "align_weight": 0, "sim_weight": 0}


@pytest.mark.parametrize("form", losses.DISTILL_LOSSES)
def test_the_distillation_loss_is_the_mean_of_both_sides(form, distillation_only):
    torch.manual_seed(1)
    options = distillation_only | {"distill_loss": form}
    model = make_model(**options)
    # Six pairs: first the rows of the sources, then those of the targets.
    teacher = torch.randn(2 * 6, 5)
    batch = make_batch() | {"teacher": teacher}

    loss, _, logged = make_criterion(**options)(model, batch)

    student = torch.cat(embed_sides(model, batch))
    if form != "similarity":
        student = student @ model.projection.weight.T
    expected = losses.distillation_loss(student, teacher, form) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logged["distill"], expected)


@pytest.mark.parametrize("form", losses.DISTILL_LOSSES)
def test_no_operation_of_distillation_waits_for_the_device(form, distillation_only):
    options = distillation_only | {"distill_loss": form}
    model = make_model(**options)
    criterion = make_criterion(**options)
    batch = make_batch() | {"teacher": torch.randn(2 * 6, 5)}
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not synchronising_operations(operations)


def test_a_batch_of_validation_without_teacher_has_no_distillation_loss(distillation_only):
    model = make_model(**distillation_only).eval()
    _, _, logged = make_criterion(**distillation_only)(model, make_batch())
    assert "distill" not in logged


# In any order; the width of the model, 16, may be named or not.
of_widths = pytest.mark.parametrize("widths", ["4,8", "8,4", "16,8,4"])


@of_widths
def test_matryoshka_adds_the_alignment_losses_of_all_widths_and_changes_no_other_loss(widths):
    model = make_model()
    batch = make_batch()

    _, _, logged = make_criterion(matryoshka=widths)(model, batch)

    u, v = embed_sides(model, batch)
    expected = losses.alignment_loss(u[:, :4], v[:, :4])
    expected += losses.alignment_loss(u[:, :8], v[:, :8])
    expected += losses.alignment_loss(u, v)
    torch.testing.assert_close(logged["align"], expected.detach())
    _, _, plain_logged = make_criterion()(model, batch)
    assert logged["gen"] == plain_logged["gen"]
    assert logged["sim"] == plain_logged["sim"]


@of_widths
def test_no_operation_of_matryoshka_waits_for_the_device(widths):
    model = make_model()
    criterion = make_criterion(matryoshka=widths)
    batch = make_batch()
    with Operations() as operations:
        criterion(model, batch)[0].backward()
    assert not synchronising_operations(operations)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gen_weight": 0, "align_weight": 0, "sim_weight": 0},
            "--objective ugt, --align-weight 0, --gen-weight 0, --sim-weight 0",
        ),
        (
            {"objective": "none", "align_weight": 0, "sim_weight": 0},
            "--objective none, --align-weight 0, --gen-weight 1, --sim-weight 0",
        ),
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
def test_options_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_criterion(**options)


@pytest.mark.parametrize("widths", ["", "0", "4,4", "4;8", "4,", "-4", "1.5", "70000", "x"])
def test_invalid_widths_are_outside_of_the_range_of_matryoshka(widths):
    """Widths are distinct numbers from 1 to 65,536, separated by commas."""
    [option] = [item for item in fields(XlingSentConfig) if item.name == "matryoshka"]
    assert widths not in option.metadata["range"]


def test_widths_of_matryoshka_beyond_that_of_the_model_are_refused():
    with pytest.raises(InputError, match=r"--matryoshka 8,17.* 16"):
        build_model(matryoshka="17,8")


def test_metrics_are_means_per_pair_over_batches_of_different_size():
    logged = []
    # The loss of a batch, its correct sentences of both directions, and its pairs.
    for loss, forward, backward, pairs in ((6.0, 2.0, 1.0, 2), (2.0, 1.0, 2.0, 6)):
        values = {"loss": loss, "gen": loss, "acc_fwd": forward, "acc_bwd": backward}
        counts = {"sample_size": pairs, "nsentences": pairs, "ntokens": 9}
        logged.append({name: torch.tensor(value) for name, value in values.items()} | counts)

    with metrics.aggregate() as aggregate:
        XlingSentLoss.reduce_metrics(logged)

    values = aggregate.get_smoothed_values()
    assert values["loss"] == (6 + 2) / (2 + 6)
    assert values["gen"] == (6 + 2) / (2 + 6)
    assert values["acc_fwd"] == (2 + 1) / (2 + 6)
    assert values["acc_bwd"] == (1 + 2) / (2 + 6)
    assert values["accuracy"] == (values["acc_fwd"] + values["acc_bwd"]) / 2
    # A loss that is not logged has no metric.
    assert "align" not in values


@pytest.mark.parametrize("objective", ["ugt", "none"])
def test_the_metrics_of_the_criterion_are_those_of_validation(objective):
    criterion = make_criterion(objective=objective)
    model = make_model(objective=objective).eval()
    _, _, logged = criterion(model, make_batch(objective))
    with metrics.aggregate(new_root=True) as aggregate:
        criterion.reduce_metrics([logged])
    assert sorted(criterion.metrics) == sorted(aggregate.get_smoothed_values())
