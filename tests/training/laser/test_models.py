"""The networks of LASER and T-LASER for training, and their decoders step by step."""

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
# The options of the code of Li and Mak.
RELEASED = {
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
    # OmegaConf would fill in these options from the task.
    options_of_task = {"max_positions": 750, "encoder_prepend_bos": False}
    for name, value in (options_of_task | PRESETS[arch] | options).items():
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
    """The smallest model of a kind, always with the same weights, in evaluation mode."""
    arch = f"{kind.partition('_')[0]}_tiny"
    return build(arch, *sizes, **RELEASED.get(kind, {}), **options).eval()


RELEASED_SIZES = {
    "encoder_embed_dim": 512,
    "decoder_embed_dim": 512,
    "decoder_input_feeding": True,
    "languages": ["de", "en", "es", "fr", "it"],
}


@pytest.mark.parametrize(
    ("arch", "options", "millions", "tolerance"),
    [
        ("laser_1", {}, 209, 2.29),
        ("laser_6", {}, 241, 2.65),
        ("tlaser_base", {}, 246, 2.7),
        ("laser_1", RELEASED_SIZES, 208.5, 0.05),
        ("laser_6", RELEASED_SIZES, 240.0, 0.05),
    ],
)
def test_the_number_of_parameters_is_near_that_of_the_paper(arch, options, millions, tolerance):
    """The paper rounds, and leaves details open."""
    with torch.device("meta"):
        model = build(arch, 50_000, **options)
    count = sum(weight.numel() for weight in model.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_depends_on_all_earlier_tokens_and_no_later_one(kind, batch):
    model = tiny(kind)
    logits, _ = model(**batch)
    for step in range(6):
        tokens = batch["prev_output_tokens"].clone()
        tokens[:, step] = 4 + (tokens[:, step] - 3) % (VOCAB - 4)
        changed_logits, _ = model(**(batch | {"prev_output_tokens": tokens}))
        difference = (changed_logits - logits).abs().amax(dim=(0, 2))
        assert (difference[:step] == 0).all(), step
        assert (difference[step:] > 1e-6).all(), step


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_depends_on_the_source_only_by_its_embedding(kind, batch):
    model = tiny(kind)
    tokens = batch["prev_output_tokens"]
    encoder_out = model.encoder(batch["src_tokens"], batch["target_language"])
    shapes = {name: value.shape for name, value in encoder_out.items()}
    width = model.encoder.network.config.output_dim
    assert shapes == {"embedding": (3, width), "target_language": (3,)}
    logits, embeddings = model(**batch)
    torch.testing.assert_close(embeddings["source"], encoder_out["embedding"])
    another_source = model.encoder(batch["src_tokens"].roll(1, dims=0), batch["target_language"])
    assert not torch.allclose(model.decoder(tokens, another_source)[0], logits)
    another_source["embedding"] = encoder_out["embedding"]
    torch.testing.assert_close(model.decoder(tokens, another_source)[0], logits)
    # Every step depends on the embedding.
    encoder_out["embedding"] = encoder_out["embedding"] + 0.1
    changed_logits, _ = model.decoder(tokens, encoder_out)
    assert ((changed_logits - logits).abs().amax(dim=2) > 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_language_changes_every_step_and_no_embedding(kind, batch):
    model = tiny(kind)
    logits, embeddings = model(**batch)
    other_languages = {"target_language": torch.tensor([2, 1, 1])}
    other_logits, same_embeddings = model(**(batch | other_languages))
    assert ((logits - other_logits).abs().amax(dim=2) > 1e-6).all()
    torch.testing.assert_close(embeddings["source"], same_embeddings["source"], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_step_by_step_equals_decoding_at_once(kind, batch):
    model = tiny(kind)
    # Three hypotheses of one sentence.
    source = batch["src_tokens"][:1].expand(3, -1)
    encoder_out = model.encoder(source, batch["target_language"])
    tokens = batch["prev_output_tokens"]
    state = {}
    for step in range(1, 7):
        logits, _ = model.decoder(tokens[:, :step], encoder_out, incremental_state=state)
        expected, _ = model.decoder(tokens[:, :step], encoder_out)
        torch.testing.assert_close(logits[:, -1], expected[:, -1], rtol=1e-4, atol=1e-5)
        # Beam search continues with the first hypothesis twice, and without the second.
        order = torch.tensor([2, 0, 0])
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
    for row, hypotheses in enumerate(generator.generate([model], {"net_input": net_input})):
        encoder_out = model.encoder(*(value[row : row + 1] for value in net_input.values()))
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"].tolist()
            logits, _ = model.decoder(torch.tensor([[EOS, *tokens[:-1]]]), encoder_out)
            log_p = F.log_softmax(logits[0], dim=1)
            score = sum(log_p[step, token].item() for step, token in enumerate(tokens))
            assert hypothesis["score"].item() == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_logits_and_no_embeddings(kind, batch):
    model = tiny(kind)
    logits, embeddings = model(**batch, target_tokens=batch["src_tokens"])
    source = F.pad(batch["src_tokens"], (0, 7), value=PAD)
    tokens = F.pad(batch["prev_output_tokens"], (0, 4), value=PAD)
    padded = batch | {"src_tokens": source, "prev_output_tokens": tokens}
    padded_logits, padded_embeddings = model(**padded, target_tokens=source)
    torch.testing.assert_close(padded_logits[:, :6], logits, rtol=1e-4, atol=1e-5)
    expected = embeddings["source"]
    torch.testing.assert_close(padded_embeddings["source"], expected, rtol=1e-4, atol=1e-5)
    # The target was the same text as the source.
    torch.testing.assert_close(embeddings["target"], expected, rtol=0, atol=0)
    torch.testing.assert_close(
        padded_embeddings["target"], padded_embeddings["source"], rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_some_positions_are_those_of_all(kind, batch):
    model = tiny(kind)
    logits, _ = model(**batch)
    positions = torch.tensor([0, 4, 7, 17])
    some_logits, _ = model(**batch, positions=positions)
    torch.testing.assert_close(some_logits, logits.flatten(0, 1)[positions])


def test_the_longest_source_and_target_have_room_for_bos_and_eos():
    model = tiny("tlaser_released", max_positions=4)
    longest = torch.tensor([[4, 5, 6, 7]])
    # The decoder also reads two symbols.
    tokens = F.pad(longest, (2, 0), value=EOS)
    logits, _ = model(longest, torch.tensor([0]), tokens, target_tokens=longest)
    assert logits.shape == (1, 2 + 4, VOCAB)


@pytest.mark.parametrize("kind", ["tlaser", "tlaser_released"])
def test_the_longest_translation_is_one_longer_than_the_largest_number_of_pieces(kind):
    """It ends with EOS."""
    assert tiny(kind, max_positions=4).decoder.max_positions() == 4 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_products_change_little(kind, batch):
    logits = {}
    for precision in ("float32", "bfloat16"):
        logits[precision], _ = tiny(kind, cpu_precision=precision)(**batch)
    assert logits["bfloat16"].dtype == torch.bfloat16
    torch.testing.assert_close(logits["bfloat16"].float(), logits["float32"], rtol=0.1, atol=0.1)


# The dropout of activations has probability 0. The layer of the decoder is one of fairseq.
T_LASER_CALLS = {
    "encoder.network.dropout": 1,
    "encoder.network.layers.0.dropout": 2,
    "encoder.network.layers.0.activation_dropout": 1,
    "encoder.network.layers.1.dropout": 2,
    "encoder.network.layers.1.activation_dropout": 1,
    "decoder.dropout": 1,
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # The embeddings and the outputs.
        ("laser", {"encoder.network.dropout": 2, "decoder.dropout": 2}),
        # The decoder drops its embeddings, and the output of each of six steps.
        ("laser_released", {"encoder.network.dropout": 2, "decoder.dropout": 1 + 6}),
        ("tlaser", T_LASER_CALLS),
        ("tlaser_released", T_LASER_CALLS),
    ],
)
def test_each_dropout_is_applied_as_often_as_its_network_needs(kind, expected, batch):
    model = tiny(kind, dropout=0.25).train()
    assert dropout_calls(model, lambda: model(**batch)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_option_is_the_probability_of_every_dropout(kind):
    model = tiny(kind, dropout=0.25)
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "dropout":
            assert module.p == 0.25


@pytest.mark.parametrize("kind", ["tlaser", "tlaser_released"])
def test_only_the_last_projections_of_branches_of_the_encoder_may_start_at_zero(kind):
    zero_weights = tiny(kind, init_branches="zero").state_dict()
    for name, weight in tiny(kind, init_branches="random").state_dict().items():
        if name.endswith(("out_proj.weight", "fc2.weight")) and name.startswith("encoder."):
            assert not zero_weights[name].any()
            assert weight.any()
        else:
            assert torch.equal(zero_weights[name], weight), name
