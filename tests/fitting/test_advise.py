"""Advice: its rule, its measures on a real encoder, and what it says of text that cannot be judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from sbert_flow import advise, build_model, fit_flow
from sbert_flow.data import sample_sentences
from sbert_flow.fitting.advise import decide, measure
from sbert_flow.measures import population_participation_ratio
from sbert_flow.modules.pipeline import encoder_before_flow


def measured(room: float, centred: float, ratio: float, sentences: int, **more: float) -> dict[str, float]:
    found = {"room": room, "centred_room": centred, "participation_ratio": ratio, "sentences": sentences}
    return {**found, "view_separation": 4.0, "mapped_separation": 4.0 * room, **more}


@pytest.mark.parametrize(
    ("room", "centred", "ratio", "sentences", "decision", "recipe"),
    [
        (3.7, 1.6, 15, 5000, "flow", "surface-flow"),
        (2.1, 1.6, 60, 2000, "flow", "surface-flow"),
        (2.6, 2.2, 64, 1999, "flow", "surface"),
        (2.5, 1.9, 94, 5000, "flow", "surface-flow"),
        (2.0, 2.0, 15, 5000, "mix", "mix"),
        (2.8, 1.8, 61, 5000, "mix", "mix"),
        (3.4, 1.3, 110, 5000, "mix", "mix"),
        (1.6, 1.5, 110, 5000, "leave", None),
        (1.2, 1.2, 15, 60, "leave", None),
    ],
)
def test_rule(room: float, centred: float, ratio: float, sentences: int, decision: str, recipe: str | None) -> None:
    advice = decide(measured(room, centred, ratio, sentences))
    assert (advice.decision, advice.recipe) == (decision, recipe)
    assert f"{room:.2f} times" in str(advice)


def test_a_contrastively_trained_encoder_is_left_alone_and_its_middle_is_not(minilm: str) -> None:
    encoder = SentenceTransformer(minilm, device="cpu")
    text = sample_sentences()[:250]
    good = advise(encoder, [*text, *text[:30]])
    assert good.decision == "leave" and good.recipe is None
    assert good.measures["duplicates"] == 30 and good.measures["sentences"] == 250
    assert good.measures["dead_dimensions"] == 3  # of 384, see the notes on ActNorm
    middle = build_model(encoder, "layer:3", "surface")
    advice = advise(middle, text)
    assert advice.decision == "flow"
    assert good.measures["view_separation"] > 2 * advice.measures["view_separation"]
    assert good.measures["room"] < 1.6 and advice.measures["room"] > 2
    embeddings = encoder_before_flow(middle).encode(text)
    ratio = population_participation_ratio(embeddings)
    assert advice.measures["participation_ratio"] == pytest.approx(ratio, rel=1e-4)


def test_same_seed_same_advice(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder)
    assert advise(model, sentences[:100], seed=2) == advise(model, sentences[:100], seed=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["The same sentence again."] * 500, "1 different sentences"),
        ([f"sentence of number {i}" for i in range(49)], "49 different sentences"),
        ([f"只有{i}个字的句子。" for i in range(100)], "separated by spaces"),
        ([f"three words {i}" for i in range(100)], "at least four words"),
    ],
)
def test_too_little_text(tiny_encoder: str, text: list[str], message: str) -> None:
    advice = advise(build_model(tiny_encoder), text)
    assert advice.decision == "too little text" and advice.recipe is None
    assert message in advice.reason


def test_near_duplicates_only_and_ten_words_only(tiny_encoder: str) -> None:
    words = "boat red sea old ferry mail island storm rope gull".split()
    rng = np.random.default_rng(0)
    few_words = [" ".join(rng.choice(words, size=6)) for _ in range(200)]
    near = [f"The old ferry carries the mail to the island {'again ' * i}".strip() for i in range(60)]
    for text in (few_words, near):
        advice = advise(build_model(tiny_encoder), text)
        assert advice.decision == "too little text" and "near-duplicates, or a handful of words" in advice.reason
        assert advice.measures["word_overlap"] > 0.2


def test_blank_and_short_sentences_change_no_overlap(tiny_encoder: str, sentences: list[str]) -> None:
    model = build_model(tiny_encoder)
    plain, mixed = advise(model, sentences[:60]), advise(model, [*sentences[:60], "", " ", "\t", "Yes.", "Two words."])
    assert mixed.measures["word_overlap"] == pytest.approx(plain.measures["word_overlap"])
    assert np.isfinite(mixed.measures["concentration"])


def test_bad_sentences(tiny_encoder: str) -> None:
    with pytest.raises(ValueError, match="must be a list of strings"):
        advise(build_model(tiny_encoder), "one string")
    with pytest.raises(ValueError, match="item 1 is 3"):
        advise(build_model(tiny_encoder), ["a", 3])


def test_auto_fits_what_the_advice_names(minilm: str) -> None:
    text = sample_sentences()[:80]
    model = build_model(minilm, "layer:3")
    given = advise(model, text)
    result = fit_flow(model, text, show_progress_bar=False)
    assert result.advice.measures["room"] == pytest.approx(given.measures["room"], rel=1e-3)  # the same edits
    assert result.recipe == result.advice.recipe == "surface"
    assert model[-1] is result.layer and result.layer.front
    named = build_model(minilm, "layer:3", "surface")
    fit_flow(named, text, recipe="surface", show_progress_bar=False)
    np.testing.assert_allclose(model.encode(text[:5]), named.encode(text[:5]), atol=1e-4)


def test_auto_stops_with_the_reason_and_loses_nothing(minilm: str) -> None:
    model = build_model(minilm)
    layer = model[-1]
    with pytest.raises(ValueError, match=r"(?s)leave: an edited sentence lies .*Name a recipe"):
        fit_flow(model, sample_sentences()[:80], show_progress_bar=False)
    assert model[-1] is layer


def test_embeddings_alone_get_the_noise_flow() -> None:
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    advised, named = fit_flow(embeddings=x), fit_flow(embeddings=x, recipe="noise")
    assert advised.recipe == "noise" and advised.advice is None
    np.testing.assert_array_equal(advised.layer.latents(x), named.layer.latents(x))


@pytest.mark.parametrize("count", [10, 20])
def test_auto_says_when_there_is_too_little_text(minilm: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"(?s)are {count} different .*advice needs 50.*Name a recipe.*needs 16"):
        fit_flow(build_model(minilm, "layer:3"), sample_sentences()[:count], show_progress_bar=False)


@pytest.mark.parametrize(("room", "decision"), [(3.0, "mix"), (2.3, "leave"), (1.5, "leave")])
def test_rule_for_text_of_a_narrow_domain(room: float, decision: str) -> None:
    advice = decide(measured(room, 2.0, 20, 5000, word_overlap=0.15))
    assert advice.decision == decision and "share 15% of their words" in advice.reason
    assert decide(measured(2.3, 2.0, 20, 5000, word_overlap=0.05)).decision == "flow"


def test_text_of_few_topics_gets_no_flow() -> None:
    advice = decide(measured(3.0, 2.5, 20, 5000, concentration=0.0026))
    assert (advice.decision, advice.recipe) == ("flow", "surface")
    assert "few topics (concentration 0.0026)" in advice.reason
    assert decide(measured(3.0, 2.5, 20, 5000, concentration=0.0024)).recipe == "surface-flow"


def test_measures_of_a_space_with_one_loud_nuisance_direction() -> None:
    """Meaning in 20 directions, surface in one: the map that divides out the latter shows how much room there is."""
    rng = np.random.default_rng(0)

    def space(loudness: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        meaning = rng.normal(size=(600, 20))

        def said(k: int) -> np.ndarray:
            return np.hstack([meaning[:k], loudness * rng.normal(size=(k, 1))]) + 0.1 * rng.normal(size=(k, 21))

        return said(600), {"a": said(300), "b": said(300)}

    loud, quiet = measure(*space(10.0)), measure(*space(0.1))
    assert loud["room"] > 5 and 0.8 < quiet["room"] < 1.2
    # In 20 directions of equal variance the cosine of two random rows has standard deviation 1 / sqrt(20).
    assert quiet["mapped_separation"] == pytest.approx(np.sqrt(20), rel=0.1)
    assert loud["mapped_separation"] == pytest.approx(np.sqrt(20), rel=0.15)


def test_room_hardly_depends_on_the_number_of_sentences(minilm: str) -> None:
    text = sample_sentences()
    rooms = [advise(SentenceTransformer(minilm, device="cpu"), text[:count]).measures["room"] for count in (60, 300)]
    assert rooms[0] == pytest.approx(rooms[1], rel=0.15) and max(rooms) < 1.7


def test_the_map_has_not_seen_the_views_behind_which_it_is_measured() -> None:
    """Edits that move a sentence anywhere leave nothing to divide out, unless W is made of these very moves."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 100))
    found = measure(x, {"a": x[:40] + rng.normal(size=(40, 100))})
    assert found["room"] < 1.1


def test_a_space_that_tells_nothing_apart_is_not_called_good() -> None:
    x = np.random.default_rng(0).normal(size=(200, 8))
    found = measure(x, {"a": -x[:100]})
    assert found["view_separation"] < 0 and found["room"] == found["mapped_separation"] / 0.01
    advice = decide({**found, "sentences": 5000})
    assert advice.decision == "leave" and "neither tells it from another sentence" in advice.reason
    found = measured(151.0, 151.0, 20, 5000, view_separation=-2.0)
    assert "times" not in str(decide(found))


def test_embeddings_that_are_not_finite(tiny_encoder: str, sentences: list[str]) -> None:
    encoder = SentenceTransformer(tiny_encoder, device="cpu")
    with torch.no_grad():
        next(encoder.parameters())[:] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        advise(encoder, sentences[:100])
