from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, WordEmbeddings
from tokenizers import Tokenizer, models, pre_tokenizers

import sbert_flow
from sbert_flow import FlowLayer, build_model, fit_flow, load
from sbert_flow.modules.pipeline import encoder_before_flow

TEXTS = ["A red boat.", "The harbour was quiet after the storm had passed.", "", "Seven geese"]


@pytest.fixture
def model(tiny_encoder, sentences):
    model = build_model(tiny_encoder)
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    return model


def latents(model, texts, **kwargs):
    """What encode should give, by the parts: the encoder's embeddings through the flow."""
    return model[-1].latents(encoder_before_flow(model).encode(texts, **kwargs)).numpy()


class TestEncode:
    def test_equals_the_flow_of_the_encoder(self, model):
        np.testing.assert_allclose(model.encode(TEXTS), latents(model, TEXTS), atol=1e-5)

    def test_single_string_tensor_list_and_batches(self, model):
        all_at_once = model.encode(TEXTS)
        np.testing.assert_allclose(model.encode(TEXTS[1]), all_at_once[1], atol=1e-5)
        np.testing.assert_allclose(model.encode(TEXTS, batch_size=1), all_at_once, atol=1e-5)
        assert torch.equal(model.encode(TEXTS, convert_to_tensor=True), torch.from_numpy(all_at_once))
        assert isinstance(model.encode(TEXTS, convert_to_numpy=False), list)
        assert len(model.encode([])) == 0

    def test_normalize_and_truncate(self, model):
        z = model.encode(TEXTS)
        unit = model.encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(unit, z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-6)
        np.testing.assert_array_equal(model.encode(TEXTS, truncate_dim=5), z[:, :5])

    def test_prompts_change_the_text(self, model):
        assert not np.allclose(model.encode(TEXTS, prompt="boat harbour "), model.encode(TEXTS))
        np.testing.assert_allclose(model.encode_query(TEXTS), model.encode(TEXTS), atol=1e-6)

    def test_multi_process(self, model):
        pool = model.start_multi_process_pool(["cpu", "cpu"])
        try:
            several = model.encode(TEXTS * 3, pool=pool, chunk_size=4)
        finally:
            model.stop_multi_process_pool(pool)
        np.testing.assert_allclose(several, model.encode(TEXTS * 3), atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_encoders_keep_a_float32_flow(self, model, dtype):
        reference = model.encode(TEXTS)
        weights = {name: value.clone() for name, value in model[-1].state_dict().items()}
        model.to(dtype)
        assert next(model[0].parameters()).dtype == dtype
        assert all(torch.equal(value, weights[name]) for name, value in model[-1].state_dict().items())
        seen = []
        model[-1].register_forward_hook(lambda module, args, out: seen.append(out["sentence_embedding"].dtype))
        half = model.encode(TEXTS)
        assert seen == [dtype]
        scale = np.abs(reference).max()
        assert np.abs(half.astype(np.float32) - reference).max() < (0.02 if dtype == torch.float16 else 0.3) * scale

    def test_log_det_through_output_value(self, model):
        features = model.encode(TEXTS, output_value=None, return_log_det=True)
        x = torch.from_numpy(encoder_before_flow(model).encode(TEXTS))
        expected = model[-1].flow(x)[1]
        torch.testing.assert_close(torch.stack([f["flow_log_det"] for f in features]), expected, atol=1e-4, rtol=1e-5)

    def test_compiled(self, model):
        expected = model.encode(TEXTS)
        model.compile(backend="eager")
        np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)


class TestPlaces:
    """After other encoders than a transformer with its pooling."""

    def tokenizer(self, sentences):
        words = sorted({word for s in sentences for word in s.split()})
        vocabulary = {word: index for index, word in enumerate(["[UNK]", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer, vocabulary

    @pytest.mark.parametrize("width", [25, 50])
    def test_static_embedding(self, sentences, tmp_path, width):
        tokenizer, _ = self.tokenizer(sentences)
        torch.manual_seed(0)
        self.check(SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=width)]), sentences, tmp_path)

    @pytest.mark.parametrize("width", [50, 300])
    def test_word_embeddings_with_pooling(self, sentences, tmp_path, width):
        from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

        _, vocabulary = self.tokenizer([s.lower() for s in sentences])
        weights = np.random.default_rng(0).normal(size=(len(vocabulary), width)).astype(np.float32)
        words = WordEmbeddings(WhitespaceTokenizer(vocab=list(vocabulary)), weights)
        self.check(SentenceTransformer(modules=[words, Pooling(width, "mean")]), sentences, tmp_path)

    def check(self, encoder, sentences, folder):
        model = build_model(encoder)
        fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
        z = model.encode(sentences)
        assert np.isfinite(z).all() and abs(z.mean()) < 0.2 and z.std() > 0.3
        model.save_pretrained(str(folder / "model"))
        np.testing.assert_array_equal(load(folder / "model").encode(sentences), z)


class TestFitState:
    def test_an_unfitted_layer_warns_once(self, tiny_encoder):
        model = build_model(tiny_encoder)
        with pytest.warns(UserWarning, match="never fitted.*fit_flow"):
            model.encode(TEXTS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.encode(TEXTS)

    def test_a_fitted_layer_does_not_warn_and_encoding_never_sets_it(self, model, tmp_path):
        model.save_pretrained(str(tmp_path / "m"))
        again = load(tmp_path / "m")
        state = {name: value.clone() for name, value in again[-1].state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.encode(["An odd text !!!"] * 3)
        again.train()(again.preprocess(TEXTS))
        assert all(torch.equal(value, state[name]) for name, value in again[-1].state_dict().items())

    def test_initialize_standardises(self):
        layer = FlowLayer(6)
        layer.initialize(3 + 2 * torch.randn(2000, 6, generator=torch.Generator().manual_seed(0)))
        assert layer.initialized
        torch.testing.assert_close(layer.noise_unit, torch.full((6,), 2.0), atol=0.1, rtol=0)
        z = layer.latents(3 + 2 * torch.randn(2000, 6))
        torch.testing.assert_close(z.std(0), torch.ones(6), atol=0.1, rtol=0)

    def test_inverse_and_log_prob(self, model):
        x = encoder_before_flow(model).encode(TEXTS, convert_to_tensor=True)
        torch.testing.assert_close(model[-1].inverse(model.encode(TEXTS)), x.clone(), atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(sbert_flow.log_prob(model, TEXTS), model[-1].log_prob(x).numpy(), rtol=1e-4)
        assert sbert_flow.log_prob(model, TEXTS[0]).shape == ()
        assert sbert_flow.log_prob(model, []).shape == (0,)

    def test_log_prob_of_an_unfitted_model(self, tiny_encoder):
        with pytest.raises(ValueError, match="never fitted"):
            sbert_flow.log_prob(build_model(tiny_encoder), TEXTS)


class TestSaving:
    def test_reload_is_bit_identical_and_has_no_pickle(self, model, tmp_path):
        model.save_pretrained(str(tmp_path / "m"))
        files = {path.relative_to(tmp_path / "m").as_posix() for path in (tmp_path / "m").rglob("*") if path.is_file()}
        assert {"modules.json", "2_FlowLayer/config.json", "2_FlowLayer/model.safetensors"} <= files
        assert not any(name.endswith((".bin", ".pt", ".pkl", ".py")) for name in files)
        for again in (load(tmp_path / "m"), SentenceTransformer(str(tmp_path / "m"), trust_remote_code=True)):
            assert type(again) is SentenceTransformer
            np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))

    def test_the_import_path_is_kept(self, model, tmp_path):
        """It is in the modules.json of everybody's saved models."""
        model.save_pretrained(str(tmp_path / "m"))
        modules = json.loads((tmp_path / "m" / "modules.json").read_text())
        assert modules[2]["type"] == "sbert_flow.modules.flow_layer.FlowLayer"

    def test_even_unsafe_serialization_writes_safetensors(self, model, tmp_path):
        model.save_pretrained(str(tmp_path / "m"), safe_serialization=False)
        assert (tmp_path / "m/2_FlowLayer/model.safetensors").is_file()
        assert not (tmp_path / "m/2_FlowLayer/pytorch_model.bin").exists()

    def test_the_library_names_the_package_when_it_is_missing(self, model, tmp_path, monkeypatch):
        monkeypatch.setattr("sbert_flow.modules.map_layer.version", lambda name: "0.1.0")
        model.save_pretrained(str(tmp_path / "m"))
        config = json.loads((tmp_path / "m" / "config_sentence_transformers.json").read_text())
        assert config["requirements"] == {"sbert-flow": ">=0.1.0"}

    def test_usage_snippet_of_the_card_runs(self, model, tmp_path, monkeypatch):
        model.save_pretrained(str(tmp_path / "m"))
        card = (tmp_path / "m" / "README.md").read_text()
        snippet = card.split("```python\n")[1].split("```")[0]
        assert "pip install -U sbert-flow" in snippet
        model_id = snippet.split('SentenceTransformer("')[1].split('"')[0]
        namespace = {}
        exec(snippet.replace(model_id, str(tmp_path / "m")), namespace)
        assert namespace["embeddings"].shape == (3, 32)
        assert "2020.emnlp-main.733" in card and "bert-flow" in card

    def test_push_to_hub_layout(self, model, monkeypatch):
        import huggingface_hub

        uploaded = {}

        class FakeApi:
            def __init__(self, *args, **kwargs):
                pass

            def create_repo(self, repo_id, **kwargs):
                return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

            def upload_folder(self, *, folder_path, **kwargs):
                from pathlib import Path

                uploaded.update(
                    {
                        p.relative_to(folder_path).as_posix(): p.stat().st_size
                        for p in Path(folder_path).rglob("*")
                        if p.is_file()
                    }
                )
                return type("Info", (), {"commit_url": "https://huggingface.co/x", "oid": "0" * 40, "pr_url": None})()

            def __getattr__(self, name):
                return lambda *args, **kwargs: None

        monkeypatch.setattr("sentence_transformers.base.model.HfApi", FakeApi)
        model.push_to_hub("acme/flow")
        assert {"2_FlowLayer/config.json", "2_FlowLayer/model.safetensors", "1_Pooling/config.json", "modules.json",
                "README.md", "model.safetensors"} <= set(uploaded)  # fmt: skip
        assert not any(name.endswith(".py") for name in uploaded)

    @pytest.mark.parametrize(
        ("damage", "error", "message"),
        [
            (
                lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
                OSError,
                "damaged or cut short",
            ),
            (lambda f: (f / "model.safetensors").unlink(), OSError, "No model.safetensors of the flow"),
            (lambda f: (f / "config.json").write_text("{"), OSError, "config.json .* is damaged"),
            (lambda f: (f / "config.json").write_text('{"embedding_dimension": 30}'), ValueError, "do not fit"),
        ],
    )
    def test_damaged_models(self, model, tmp_path, damage, error, message):
        model.save_pretrained(str(tmp_path / "m"))
        damage(tmp_path / "m" / "2_FlowLayer")
        with pytest.raises(error, match=message):
            load(tmp_path / "m")


class TestWrongUse:
    def test_wrong_width(self, tiny_encoder):
        modules = list(build_model(tiny_encoder).children())[:2]
        with pytest.raises(ValueError, match=r"FlowLayer\(embedding_dimension=48\) got embeddings of width 32"):
            SentenceTransformer(modules=[*modules, FlowLayer(48)])
        model = SentenceTransformer(modules=modules)
        model.append(FlowLayer(48))  # not seen by the library until it encodes
        with pytest.raises(ValueError, match=r"Make it FlowLayer\(32\)"):
            model.encode(TEXTS)

    def test_normalize_before_the_flow(self, tiny_encoder):
        modules = list(build_model(tiny_encoder).children())[:2]
        with pytest.warns(UserWarning, match="Normalize module before the FlowLayer"):
            SentenceTransformer(modules=[*modules, Normalize(), FlowLayer(32)])

    def test_flow_without_a_pooling(self, tiny_encoder):
        model = SentenceTransformer(modules=[build_model(tiny_encoder)[0], FlowLayer(32)])
        with pytest.raises(ValueError, match="put a Pooling before it"):
            model.encode(TEXTS)

    def test_flow_without_an_encoder(self):
        with pytest.raises(ValueError, match="after the pooling"):
            SentenceTransformer(modules=[FlowLayer(4)])

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_embeddings_that_are_not_finite(self, bad):
        x = torch.randn(40, 4)
        x[[3, 11], 2] = bad
        layer = FlowLayer(4)
        for method in (layer.initialize, layer.log_prob, layer.latents, layer.inverse):
            with pytest.raises(ValueError, match=r"2 of 40 embeddings hold NaN or infinity \(rows 3, 11\)"):
                method(x)

    def test_other_bad_embeddings(self):
        layer = FlowLayer(4)
        with pytest.raises(ValueError, match="all 40 embeddings are equal"):
            layer.initialize(torch.ones(40, 4))
        with pytest.raises(ValueError, match="all 40 embeddings are equal"):  # but for rounding
            layer.initialize(0.3 + 1e-8 * torch.randn(40, 4))
        with pytest.raises(ValueError, match="embeddings must be numbers in rows of equal length"):
            layer.initialize(["a"] * 40)
        with pytest.raises(ValueError, match="at least 16 embeddings are needed, but got 1"):
            layer.initialize(torch.randn(1, 4))
        with pytest.raises(ValueError, match=r"shape \(n, 4\), but got \(40, 5\)"):
            layer.initialize(torch.randn(40, 5))
        assert not layer.initialized
