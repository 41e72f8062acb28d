"""LASER's and T-LASER's networks for training: what the decoder sees, and that decoding step by
step is the same.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from dropout_calls import dropout_calls
from fairseq.sequence_generator import SequenceGenerator
from pair_batches import EOS, PAD, Words

from fairseq_lxsr.training.laser import lstm as laser
from fairseq_lxsr.training.laser import transformer as tlaser

VOCAB = 40
PRESETS = laser.LASER_PRESETS | tlaser.TLASER_PRESETS
TABLES = {
    "laser": (laser.LaserModelConfig, laser.LaserModel),
    "tlaser": (tlaser.TLaserModelConfig, tlaser.TLaserModel),
}
RELEASED = {  # as in the code of Li and Mak
    "laser_released": {
        "encoder_prepend_bos": True,
        "encoder_append_eos": True,
        "decoder_input_feeding": True,
    },
    "tlaser_released": {
        "encoder_append_eos": True,
        "decoder_lang_at": "memory",
        "init_weights": "released",
    },
}
KINDS = [*TABLES, *RELEASED]


def build(arch, vocab_size=VOCAB, languages=("en", "fr", "de"), **options):
    config, model = TABLES[arch.partition("_")[0]]
    cfg = config()
    elsewhere = {"max_positions": 750, "encoder_prepend_bos": False}  # what OmegaConf fills in
    for name, value in (elsewhere | PRESETS[arch] | options).items():
        setattr(cfg, name, value)
    task = SimpleNamespace(source_dictionary=Words(vocab_size), languages=list(languages))
    torch.manual_seed(0)
    return model.build_model(cfg, task)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(4, VOCAB, (3, 6), generator=generator)
    source[1, 3:] = PAD
    target = torch.randint(4, VOCAB, (3, 5), generator=generator)
    previous = torch.cat((torch.full((3, 1), EOS), target), dim=1)
    return {
        "src_tokens": source,
        "target_language": torch.tensor([0, 0, 0]),
        "prev_output_tokens": previous,
    }


def tiny(kind, *sizes, **options):
    return build(
        f"{kind.partition('_')[0]}_tiny", *sizes, **RELEASED.get(kind, {}), **options
    ).eval()


RELEASED_WIDTHS = {
    "encoder_embed_dim": 512,
    "decoder_embed_dim": 512,
    "decoder_input_feeding": True,
}
RELEASED_WIDTHS |= {"languages": ["de", "en", "es", "fr", "it"]}


@pytest.mark.parametrize(
    ("arch", "options", "millions", "off"),
    [
        *(("laser_1", {}, 209, 2.29), ("laser_6", {}, 241, 2.65), ("tlaser_base", {}, 246, 2.7)),
        *(("laser_1", RELEASED_WIDTHS, 208.5, 0.05), ("laser_6", RELEASED_WIDTHS, 240.0, 0.05)),
    ],
)
def test_parameters(arch, options, millions, off):
    """Those of the paper, which rounds and leaves details open; so the number does not tell the
    released widths.
    """
    with torch.device("meta"):
        model = build(arch, 50_000, **options)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=off)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_sees_its_own_past_and_nothing_that_comes_later(kind, batch):
    model = tiny(kind)
    before, _ = model(**batch)
    for step in range(6):
        changed = dict(batch, prev_output_tokens=batch["prev_output_tokens"].clone())
        changed["prev_output_tokens"][:, step] = 4 + (
            changed["prev_output_tokens"][:, step] - 3
        ) % (VOCAB - 4)
        difference = (model(**changed)[0] - before).abs().amax(dim=(0, 2))
        assert difference[:step].max() == 0 if step else True
        assert (difference[step:] > 1e-6).all(), step


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_sees_nothing_of_the_source_but_its_embedding(kind, batch):
    model = tiny(kind)
    encoder_out = model.encoder(batch["src_tokens"], batch["target_language"])
    expected = {"embedding": (3, model.encoder.network.config.output_dim), "target_language": (3,)}
    assert {name: value.shape for name, value in encoder_out.items()} == expected
    logits, embeddings = model(**batch)
    torch.testing.assert_close(embeddings["source"], encoder_out["embedding"])
    # another source with the same embedding: the decoder cannot tell
    other = model.encoder(batch["src_tokens"].roll(1, dims=0), batch["target_language"])
    assert not torch.allclose(model.decoder(batch["prev_output_tokens"], other)[0], logits)
    other["embedding"] = encoder_out["embedding"]
    torch.testing.assert_close(model.decoder(batch["prev_output_tokens"], other)[0], logits)
    moved = dict(encoder_out, embedding=encoder_out["embedding"] + 0.1)
    assert (
        (model.decoder(batch["prev_output_tokens"], moved)[0] - logits).abs().amax(dim=2) > 1e-6
    ).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_language_changes_every_step_and_the_encoder_never_sees_it(kind, batch):
    model = tiny(kind)
    (logits, embeddings), (others, same) = (
        model(**(batch | {"target_language": torch.tensor(languages)}))
        for languages in ([0, 0, 0], [2, 1, 1])
    )
    assert ((logits - others).abs().amax(dim=2) > 1e-6).all()
    torch.testing.assert_close(embeddings["source"], same["source"], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_step_by_step_equals_decoding_at_once_also_when_hypotheses_change_places(
    kind, batch
):
    model = tiny(kind)
    source = batch["src_tokens"][:1].expand(3, -1)  # three hypotheses of one sentence
    encoder_out = model.encoder(source, batch["target_language"])
    tokens, state = batch["prev_output_tokens"], {}
    # as beam search: the first hypothesis survives twice, the second not at all
    order = torch.tensor([2, 0, 0])
    for step in range(1, 7):
        logits, _ = model.decoder(tokens[:, :step], encoder_out, incremental_state=state)
        whole, _ = model.decoder(tokens[:, :step], encoder_out)
        torch.testing.assert_close(logits[:, -1], whole[:, -1], rtol=1e-4, atol=1e-5)
        if step == 3:
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
            tokens = tokens[order]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_beam_search_are_those_of_decoding_at_once(kind):
    model = tiny(kind, 8, languages=["en"])
    net_input = {
        "src_tokens": torch.tensor([[4, 5, 6], [7, 4, 4]]),
        "target_language": torch.tensor([0, 0]),
    }
    generator = SequenceGenerator(
        [model], Words(8), beam_size=7, max_len_a=0, max_len_b=4, normalize_scores=False
    )
    found = generator.generate([model], {"net_input": net_input})
    for row, hypotheses in enumerate(found):
        encoder_out = model.encoder(*(value[row : row + 1] for value in net_input.values()))
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"].tolist()
            logits, _ = model.decoder(torch.tensor([[EOS, *tokens[:-1]]]), encoder_out)
            log_p = F.log_softmax(logits[0], dim=1)
            score = sum(log_p[step, token].item() for step, token in enumerate(tokens))
            assert hypothesis["score"].item() == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_and_logits_of_some_places_are_those_of_all(kind, batch):
    model = tiny(kind)
    logits, embeddings = model(**batch, target_tokens=batch["src_tokens"])
    wider = dict(batch, src_tokens=F.pad(batch["src_tokens"], (0, 7), value=PAD))
    wider["prev_output_tokens"] = F.pad(batch["prev_output_tokens"], (0, 4), value=PAD)
    again, others = model(**wider, target_tokens=wider["src_tokens"])
    positions = torch.tensor([0, 4, 7, 17])
    torch.testing.assert_close(
        model(**batch, positions=positions)[0], logits.flatten(0, 1)[positions]
    )
    torch.testing.assert_close(again[:, :6], logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(others["source"], embeddings["source"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embeddings["target"], embeddings["source"], rtol=0, atol=0)
    torch.testing.assert_close(others["target"], others["source"], rtol=0, atol=0)


def test_the_longest_source_and_target_have_room_for_bos_and_eos():
    model = tiny("tlaser_released", max_positions=4)
    longest = torch.tensor([[4, 5, 6, 7]])
    logits, _ = model(
        longest, torch.tensor([0]), F.pad(longest, (2, 0), value=EOS), target_tokens=longest
    )
    assert logits.shape == (1, 6, VOCAB)
    assert (
        model.decoder.max_positions()
        == tiny("tlaser", max_positions=4).decoder.max_positions()
        == 5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_products_change_little(kind, batch):
    logits = {}
    for precision in ("float32", "bfloat16"):
        logits[precision], _ = tiny(kind, cpu_precision=precision)(**batch)
    assert logits["bfloat16"].dtype == torch.bfloat16
    torch.testing.assert_close(logits["bfloat16"].float(), logits["float32"], rtol=0.1, atol=0.1)


LAYER = {"dropout": 2, "activation_dropout": 1}  # the latter of probability 0
# the layer of the decoder is fairseq's
T_LASER = {"encoder.network.dropout": 1, "decoder.dropout": 1}
T_LASER |= {
    f"encoder.network.layers.{layer}.{name}": count
    for layer in (0, 1)
    for name, count in LAYER.items()
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("laser", {"encoder.network.dropout": 2, "decoder.dropout": 2}),  # embeddings and outputs
        (
            "laser_released",
            {"encoder.network.dropout": 2, "decoder.dropout": 1 + 6},
        ),  # the output of every step
        ("tlaser", T_LASER),
        ("tlaser_released", T_LASER),
    ],
)
def test_where_values_are_dropped(kind, expected, batch):
    model = tiny(kind, dropout=0.25).train()
    assert dropout_calls(model, lambda: model(**batch)) == expected
    assert {
        module.p for name, module in model.named_modules() if name.rpartition(".")[2] == "dropout"
    } == {0.25}


@pytest.mark.parametrize("kind", ["tlaser", "tlaser_released"])
def test_branches_of_the_encoder_may_start_at_zero(kind):
    zero, random = (
        tiny(kind, init_branches=branches).state_dict() for branches in ("zero", "random")
    )
    for name, value in random.items():
        if name.endswith(("out_proj.weight", "fc2.weight")) and name.startswith("encoder."):
            assert not zero[name].any()
            assert value.any()
        else:
            assert torch.equal(zero[name], value), name
