from __future__ import annotations

import copy
import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel, AutoTokenizer

from sbert_flow import PseudoTokenLoss, build_model
from sbert_flow.losses.pseudo_attention import PseudoTokenHead

TEXTS = ["A man plays a guitar .", "The cat sleeps .", "Two dogs run in the snow near a house .", "It rains ."]


def encoder_model(folder, pooling="cls", **kwargs):
    transformer = Transformer(folder, **kwargs)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)])


@pytest.fixture
def model(tiny_encoder):
    torch.manual_seed(0)
    return encoder_model(tiny_encoder)


def features_of(model, texts=TEXTS):
    return model.preprocess(list(texts))


def trained(loss):
    return [parameter for parameter in loss.parameters() if parameter.requires_grad]


def equal_weights(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


# The head


def attention_by_hand(query, key, value, mask):
    """Softmax attention over lists of vectors, in Python numbers."""
    rows = []
    for q in query:
        logits = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in key]
        weights = [math.exp(logit) * kept for logit, kept in zip(logits, mask, strict=True)]
        columns = zip(*value, strict=True)
        rows.append([sum(w * v for w, v in zip(weights, c, strict=True)) / sum(weights) for c in columns])
    return rows


def linear_by_hand(layer, rows):
    lines = list(zip(layer.weight.tolist(), layer.bias.tolist(), strict=True))
    return [[sum(w * x for w, x in zip(line, row, strict=True)) + bias for line, bias in lines] for row in rows]


def test_both_attentions_are_the_papers_formula():
    torch.manual_seed(1)
    head = PseudoTokenHead(5, 5, num_pseudo_tokens=7).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    states = torch.randn(1, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0]])
    y, table = states[0].tolist(), head.table.tolist()

    def attend(query, states, mask):
        return attention_by_hand(
            *(
                linear_by_hand(layer, rows)
                for layer, rows in ((head.query, query), (head.key, states), (head.value, states))
            ),
            mask,
        )

    expected = attend(table, y, mask[0].tolist())
    pseudo = head.pseudo_sequence(states, mask)
    assert pseudo.shape == (1, 7, 5)
    torch.testing.assert_close(pseudo[0].tolist(), expected, rtol=1e-12, atol=1e-12)
    rebuilt = attend(y, expected, [1] * 7)
    torch.testing.assert_close(head.sentence_sequence(states, pseudo)[0].tolist(), rebuilt, rtol=1e-12, atol=1e-12)


def test_attention_equals_torchs_multi_head_attention_of_one_head():
    torch.manual_seed(2)
    head = PseudoTokenHead(8, 8, num_pseudo_tokens=6).double()
    reference = torch.nn.MultiheadAttention(8, 1, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([m.weight for m in (head.query, head.key, head.value)]))
        reference.in_proj_bias.copy_(torch.cat([m.bias for m in (head.query, head.key, head.value)]))
        reference.out_proj.weight.copy_(torch.eye(8))
        reference.out_proj.bias.zero_()
    states = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    pseudo, _ = reference(head.table.expand(3, -1, -1), states, states, key_padding_mask=mask == 0)
    torch.testing.assert_close(head.pseudo_sequence(states, mask), pseudo)
    torch.testing.assert_close(head.sentence_sequence(states, pseudo), reference(states, pseudo, pseudo)[0])


def test_fresh_pseudo_tokens_look_at_different_tokens():
    torch.manual_seed(4)
    states = torch.randn(2, 12, 64)
    pseudo = PseudoTokenHead(64, 64, num_pseudo_tokens=16).pseudo_sequence(states, torch.ones(2, 12))
    spread = pseudo.std(dim=1).square().mean().sqrt()
    assert spread > 0.3 * states.mean(dim=1).square().mean().sqrt()  # 0 if each were the mean of the tokens


def test_a_text_without_tokens_stays_finite():
    head = PseudoTokenHead(4, 4, num_pseudo_tokens=3)
    assert torch.isfinite(head.pseudo_sequence(torch.randn(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))).all()


def test_padding_never_changes_a_view(model):
    loss = PseudoTokenLoss(model)
    model.eval()
    alone = loss._view(model(features_of(model, TEXTS[1:2])), loss.head)
    padded = loss._view(model(features_of(model, TEXTS[1:3])), loss.head)
    torch.testing.assert_close(padded[:1], alone, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(padded[1:], alone, rtol=1e-3)


def test_left_padding_gives_the_same_view(model):
    loss = PseudoTokenLoss(model)
    states, gap = torch.randn(1, 3, 32), torch.randn(1, 2, 32)
    right = {"token_embeddings": torch.cat([states, gap], 1), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])}
    left = {"token_embeddings": torch.cat([gap, states], 1), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}
    torch.testing.assert_close(loss._view(left, loss.head), loss._view(right, loss.head))


def test_same_seed_same_head():
    first, second, third = (PseudoTokenHead(8, 8, 4, seed) for seed in (3, 3, 4))
    assert equal_weights(first, second) and not torch.equal(first.table, third.table)


# The loss


def test_loss_is_infonce_over_batch_and_queue():
    torch.manual_seed(3)
    anchors, keys, old = (torch.randn(n, 6) for n in (3, 3, 5))
    total = 0.0
    for i, h in enumerate(anchors.double()):
        cosines = [float(h @ k / (h.norm() * k.norm())) for k in [*keys.double(), *old.double()]]
        total -= math.log(math.exp(cosines[i] / 0.1) / sum(math.exp(cosine / 0.1) for cosine in cosines))
    got = PseudoTokenLoss.compute_loss_from_embeddings(anchors, [keys, old], temperature=0.1)
    assert got.item() == pytest.approx(total / 3, rel=1e-5)


def test_two_steps_by_hand(tiny_encoder):
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = encoder_model(tiny_encoder, config_kwargs=off)
    with pytest.warns(UserWarning, match="no dropout"):
        loss = PseudoTokenLoss(model, num_pseudo_tokens=9, momentum=0.5, queue_batches=1, temperature=1.0)
    model.train()
    first, second = features_of(model), features_of(model, TEXTS[::-1])

    def view(encoder, head, features):
        out = encoder(dict(features))
        states = out["token_embeddings"]
        rebuilt = head.sentence_sequence(states, head.pseudo_sequence(states, out["attention_mask"]))
        return torch.tanh(rebuilt[:, 0] @ head.dense.weight.T + head.dense.bias)

    def infonce(h, k):
        logits = torch.cosine_similarity(h[:, None], k[None], dim=-1)
        return (logits.logsumexp(1) - torch.diag(logits)).mean()

    old_encoder, old_head = copy.deepcopy(model[0]), copy.deepcopy(loss.head)
    optimizer = torch.optim.AdamW(trained(loss), lr=1e-2)
    value = loss([first])
    old_keys = view(old_encoder, old_head, first)
    torch.testing.assert_close(value, infonce(view(model[0], loss.head, first), old_keys))
    value.backward()
    optimizer.step()

    for module, old in ((model[0], old_encoder), (loss.head, old_head)):
        for parameter, copied in zip(module.parameters(), old.parameters(), strict=True):
            copied.data = 0.5 * copied.data + 0.5 * parameter.data
    keys = view(old_encoder, old_head, second)
    anchors = view(model[0], loss.head, second)
    expected = infonce(anchors, torch.cat([keys, old_keys]))
    assert not torch.isclose(expected, infonce(anchors, keys))  # the queue counts
    torch.testing.assert_close(loss([second]), expected)
    assert len(loss.queue) == 1
    torch.testing.assert_close(loss.queue[0], normalize(keys))


def test_gradients_reach_encoder_table_and_head_and_not_the_copies(model):
    loss = PseudoTokenLoss(model)
    model.train()
    loss([features_of(model)]).backward()
    for name, parameter in [*model[0].named_parameters(), *loss.head.named_parameters()]:
        if "pooler" in name:  # BERT's own, which is not used
            assert parameter.grad is None
        elif not name.endswith("key.bias"):  # it shifts all logits of a query alike: its gradient is zero
            assert parameter.grad.abs().sum() > 0, name
    for parameter in [*loss.momentum_encoder.parameters(), *loss.momentum_head.parameters()]:
        assert not parameter.requires_grad and parameter.grad is None
    assert not any(keys.requires_grad for keys in loss.queue)


def test_copies_follow_in_closed_form(model):
    """With the weights held at w0 + 1 after the start, the copy after n steps is w0 + 1 - beta^n."""
    loss = PseudoTokenLoss(model, momentum=0.8)
    model.train()
    start = copy.deepcopy(loss.momentum_encoder)
    loss([features_of(model)])
    steps = 5
    for _ in range(steps):
        with torch.no_grad():
            for parameter, old in zip(model[0].parameters(), start.parameters(), strict=True):
                parameter.copy_(old + 1)
            loss.head.dense.weight.add_(0.1)  # as an optimiser does
        loss.follow()
        loss.follow()  # once a step, however often it is asked
    assert loss.steps == steps
    for copied, old in zip(loss.momentum_encoder.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(copied, old + 1 - 0.8**steps, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_every_form_of_the_optimiser_is_noticed(model, kind):
    loss = PseudoTokenLoss(model)
    model.train()
    optimizer = torch.optim.AdamW(trained(loss), lr=1e-3, **kind)
    for _ in range(3):
        optimizer.zero_grad()
        loss([features_of(model)]).backward()
        optimizer.step()
    loss.follow()
    assert loss.steps == 3


def test_a_step_that_the_scaler_leaves_out_is_none(model):
    loss = PseudoTokenLoss(model)
    model.train()
    optimizer = torch.optim.AdamW(trained(loss), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)  # overflows in the first step
    scaler.scale(loss([features_of(model)]) * 10).backward()
    scaler.step(optimizer)
    loss.follow()
    assert loss.steps == 0
    assert equal_weights(loss.momentum_encoder, model[0])


def test_queue_keeps_the_last_batches_and_evaluation_leaves_it(model):
    loss = PseudoTokenLoss(model, queue_batches=2)
    model.train()
    seen = []
    for texts in (TEXTS, TEXTS[:2], TEXTS[:3]):
        loss([features_of(model, texts)])
        seen.append(loss.queue[0])
    assert [len(keys) for keys in loss.queue] == [3, 2]
    assert loss.queue[1] is seen[1]
    model.eval()
    first = loss([features_of(model)])
    assert [len(keys) for keys in loss.queue] == [3, 2]
    assert torch.equal(first, loss([features_of(model)]))  # no dropout either


FAMILIES = {
    "bert": {},
    "roberta": {"pad_token_id": 0, "max_position_embeddings": 70},
    "mpnet": {"pad_token_id": 0, "max_position_embeddings": 70},
    "modernbert": {
        "embedding_dropout": 0.1, "pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3,
        "sep_token_id": 3, "global_attn_every_n_layers": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_any_family_of_encoders_trains(family, tiny_encoder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **shape, **FAMILIES[family])
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = encoder_model(str(tmp_path), pooling="mean")
    loss = PseudoTokenLoss(model, num_pseudo_tokens=16)
    model.train()
    before = copy.deepcopy(model[0])
    optimizer = torch.optim.AdamW(trained(loss), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss([features_of(model)]).backward()
        optimizer.step()
    assert torch.isfinite(loss([features_of(model)]))
    assert not equal_weights(before, model[0])


def test_learns_on_real_text(tiny_encoder, sentences):
    """The loss falls, and sentences move apart (uniformity; Wang & Isola, 2020), two views of one less than others.

    Alignment alone rises on this random encoder, whose embeddings begin nearly in one point. On a trained one
    benchmarks/train_encoder.py prints both.
    """
    torch.manual_seed(0)
    model = encoder_model(tiny_encoder, pooling="mean")
    loss = PseudoTokenLoss(model)
    held_out = features_of(model, sentences[300:364])

    def measure():
        model.train()
        torch.manual_seed(1)
        with torch.no_grad():
            first, second = (normalize(model(dict(held_out))["sentence_embedding"]) for _ in range(2))
        between = torch.pdist(first).square()
        share = (first - second).square().sum(1).mean() / between.mean()
        return share.item(), between.mul(-2).exp().mean().log().item()

    share_before, uniform_before = measure()
    optimizer = torch.optim.AdamW(trained(loss), lr=2e-3)
    history = []
    for step in range(80):
        model.train()
        start = step % 8 * 32
        optimizer.zero_grad()
        value = loss([features_of(model, sentences[start : start + 32])])
        value.backward()
        optimizer.step()
        history.append(value.item())
    share, uniform = measure()
    # From the sixth step on the queue is full, and the task the same.
    assert sum(history[-8:]) < 0.75 * sum(history[5:13])
    assert uniform < uniform_before - 0.1
    assert share < share_before


# Bad input


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_pseudo_tokens": 0}, "num_pseudo_tokens must be a whole number of at least 1, but got 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, but got 1.0"),
        ({"momentum": math.nan}, "momentum must be"),
        ({"queue_batches": -1}, "queue_batches must be a whole number of at least 0, but got -1"),
        ({"temperature": 0.0}, "temperature must be above 0, but got 0.0"),
    ],
)
def test_arguments_out_of_range(model, kwargs, message):
    with pytest.raises(ValueError, match=message):
        PseudoTokenLoss(model, **kwargs)


def test_models_that_cannot_be_trained_so(model, tiny_encoder):
    static = SentenceTransformer(modules=[StaticEmbedding(AutoTokenizer.from_pretrained(tiny_encoder), None, 8)])
    with pytest.raises(ValueError, match="begin with Transformer and Pooling, but its modules are: StaticEmbedding"):
        PseudoTokenLoss(static)
    with pytest.raises(ValueError, match="WeightedLayerPooling"):
        PseudoTokenLoss(build_model(tiny_encoder, "first-last"))
    with pytest.raises(ValueError, match=r"FlowLayer\. Train the encoder without the rest"):
        PseudoTokenLoss(build_model(tiny_encoder, "cls"))
    PseudoTokenLoss(SentenceTransformer(modules=[*model.children(), Normalize()]))
    with pytest.raises(ValueError, match=r"weights are torch\.float16"):
        PseudoTokenLoss(encoder_model(tiny_encoder).half())
    model.max_seq_length = 1000
    with pytest.raises(ValueError, match="has 64 positions, but max_seq_length is 1000"):
        PseudoTokenLoss(model)


def test_positions_that_the_padding_takes_do_not_count(tiny_encoder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = AutoConfig.for_model(
        "roberta", vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, **shape
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = encoder_model(str(tmp_path))
    model.max_seq_length = 66
    with pytest.raises(ValueError, match="has 64 positions, but max_seq_length is 66"):
        PseudoTokenLoss(model)
    model.max_seq_length = 64
    loss = PseudoTokenLoss(model)
    model.train()
    assert torch.isfinite(loss([features_of(model, ["word " * 500, *TEXTS])]))


def test_the_copies_see_other_dropout_in_each_pass(model):
    loss = PseudoTokenLoss(model, queue_batches=2)
    for training in (True, True, False):
        model.train(training)
        loss([features_of(model)])
    first, second = loss.queue  # evaluation leaves nothing there
    assert not torch.allclose(first, second, atol=1e-4)


def test_long_sentences_are_cut(model):
    loss = PseudoTokenLoss(model)
    model.train()
    assert torch.isfinite(loss([features_of(model, ["word " * 500, *TEXTS])]))


def test_nothing_to_contrast_with(model):
    loss = PseudoTokenLoss(model)
    model.train()
    with pytest.raises(ValueError, match="batch size of at least 2"):
        loss([features_of(model, TEXTS[:1])])
    loss([features_of(model)])
    assert torch.isfinite(loss([features_of(model, TEXTS[:1])]))  # the queue serves


def test_more_than_one_column(model):
    loss = PseudoTokenLoss(model)
    with pytest.raises(ValueError, match="one column of texts, but got 2"):
        loss([features_of(model), features_of(model)])


def test_token_states_joined_into_one_row(model):
    loss = PseudoTokenLoss(model)
    with pytest.raises(ValueError, match="attn_implementation"):
        loss._view({"token_embeddings": torch.randn(1, 9, 32), "attention_mask": torch.ones(2, 5)}, loss.head)


def test_an_older_library_is_refused(tiny_encoder, monkeypatch):
    monkeypatch.setattr("sbert_flow.losses.pseudo_token.version", lambda name: "6.1.0")
    with pytest.raises(ImportError, match=r"needs sentence-transformers 6\.2 or newer, but 6\.1\.0 is installed"):
        PseudoTokenLoss(SentenceTransformer(tiny_encoder))
