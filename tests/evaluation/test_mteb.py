from __future__ import annotations

import json
import shutil
import sys

import mteb as mteb_package
import pytest
from mteb.cache import ResultCache
from mteb.models.model_implementations import MODEL_REGISTRY

from sbert_flow import build_model, fit_flow, fit_whitening, load
from sbert_flow.cli import app
from sbert_flow.data import SentencePairs, sample_pairs
from sbert_flow.evaluation import evaluate_sts
from sbert_flow.evaluation.mteb_model import content_revision, identify, model_meta, register, wrap
from sbert_flow.evaluation.mteb_run import mteb_tasks, run_mteb
from sbert_flow.modules import save
from sbert_flow.modules.pipeline import encoder_before_map


def jsonl(pairs: SentencePairs) -> str:
    rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    return "\n".join(json.dumps({"sentence1": a, "sentence2": b, "score": y}) for a, b, y in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sts")
    content = jsonl(sample_pairs())
    for task, splits in {"STS12": ["test"], "SICK-R": ["train", "validation", "test"]}.items():
        (folder / task).mkdir()
        for split in splits:
            (folder / task / f"{split}.jsonl").write_text(content)
    return folder


@pytest.fixture(scope="module")
def folder(minilm, sentences, tmp_path_factory):
    # A real encoder: the cosines of an untrained one lie so close that rounding decides on their ranks.
    model = build_model(minilm, "layer:2")
    fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    return save(model, tmp_path_factory.mktemp("models") / "flow")


def test_scores_are_those_of_the_suite_and_the_tree_loads(folder, data, tmp_path):
    app(
        ["mteb", str(folder), "--tasks", "STS12", "--tasks", "SICK-R", "--data", str(data), "--output", str(tmp_path),
         "--name", "acme/flow", "--trained-on", "STS12"],
        standalone_mode=False,
    )  # fmt: skip
    revision = content_revision(folder)
    results = tmp_path / "results" / "acme__flow" / revision
    assert {path.name for path in results.glob("*.json")} == {"STS12.json", "SICK-R.json", "model_meta.json"}
    read = ResultCache(tmp_path).load_results(models=["acme/flow"], tasks=["STS12", "SICK-R"])
    [model_result] = read.model_results
    assert (model_result.model_name, model_result.model_revision) == ("acme/flow", revision)
    pairs = sample_pairs()
    suite = evaluate_sts(load(folder), [SentencePairs("t", pairs.sentences1, pairs.sentences2, pairs.scores)])
    for result in model_result.task_results:
        assert result.get_score() == pytest.approx(suite["average"], abs=1e-6)
        assert result.dataset_revision == "local"
    meta = json.loads((results / "model_meta.json").read_text())
    assert meta["name"] == "acme/flow" and meta["revision"] == revision and meta["training_datasets"] == ["STS12"]
    assert meta["embed_dim"] == 384 and meta["n_parameters"] == sum(p.numel() for p in load(folder).parameters())


def test_models_of_one_name_do_not_get_each_others_scores(folder, data, tmp_path):
    flow = load(folder)
    raw = encoder_before_map(flow)  # its card names no model, nor does the flow's
    tasks = mteb_tasks(["STS12"], data)
    scores = {
        name: run_mteb(model, model_meta(model, f"acme/{name}", "v1"), tasks, tmp_path)["STS12"]
        for name, model in {"flow": flow, "raw": raw}.items()
    }
    assert scores["flow"] != scores["raw"]
    pairs = sample_pairs()
    task = SentencePairs("t", pairs.sentences1, pairs.sentences2, pairs.scores)
    assert scores["raw"] == pytest.approx(evaluate_sts(raw, [task])["average"], abs=1e-6)


def test_the_revision_is_that_of_the_content(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert content_revision(copy) == content_revision(folder)
    (copy / "README.md").write_text("another card")
    assert content_revision(copy) == content_revision(folder)
    [config] = copy.glob("*_FlowLayer/config.json")
    config.write_text(config.read_text() + " ")
    assert content_revision(copy) != content_revision(folder)


def test_results_of_another_revision_are_not_mixed_in(folder, data, tmp_path):
    model = load(folder)
    run_mteb(model, model_meta(model, "acme/flow", "v1"), mteb_tasks(["STS12"], data), tmp_path)
    with pytest.raises(FileExistsError, match=r"revision v1, but the model's is v2"):
        run_mteb(model, model_meta(model, "acme/flow", "v2"), mteb_tasks(["STS12"], data), tmp_path)


def test_a_registered_model_is_loaded_by_name(folder, monkeypatch):
    name = "acme/flow"
    meta = model_meta(load(folder), name, "v1").model_copy(update={"name": str(folder)})
    monkeypatch.setitem(MODEL_REGISTRY, str(folder), None)
    register(meta)
    model = mteb_package.get_model(str(folder), "v1")
    assert type(model.model[-1]).__name__ == "FlowLayer"
    assert model.mteb_model_meta.experiment_name is None  # else results would land in experiments/


@pytest.mark.parametrize("kind", ["noise", "whitening"])
def test_the_mock_run_is_green(tiny_encoder, sentences, kind):
    model = build_model(tiny_encoder, recipe=kind)
    if kind == "whitening":
        fit_whitening(model, sentences, show_progress_bar=False)
    else:
        fit_flow(model, sentences, recipe="noise", show_progress_bar=False)
    results = mteb_package.mock_run(wrap(model, model_meta(model, "acme/flow", "v1")))
    text_tasks = {name: result for name, result in results.task_results.items() if result is not None}
    failed = {name: result for name, result in text_tasks.items() if type(result).__name__ == "TaskError"}
    assert not failed and len(text_tasks) > 20


def test_local_files_do_not_change_the_class(data):
    [local] = mteb_tasks(["STS12"], data)
    assert local.metadata.dataset["revision"] == "local"
    assert len(mteb_package.get_task("STS12").metadata.dataset["revision"]) == 40


def test_identity():
    assert identify("acme/model", revision="v1") == ("acme/model", "v1")
    with pytest.raises(ValueError, match="org/model"):
        identify("acme/model", name="flow", revision="v1")
    with pytest.raises(ValueError, match="revision"):
        identify("acme/model", revision="../up")
    with pytest.raises(OSError, match="--revision"):
        identify("acme/a-model-that-is-not-there")


def test_bad_input(folder, data, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="STS13"):
        mteb_tasks(["STS13"], data)
    with pytest.raises(ValueError, match="local data are known for"):
        mteb_tasks(["BIOSSES"], data)
    with pytest.raises(ValueError, match="no task 'STS99'"):
        mteb_tasks(["STS99"])
    with pytest.raises(ValueError, match="at least one task"):
        mteb_tasks([])
    with pytest.raises(OSError, match=r"mteb/sts12-sts.*--data"):
        mteb_tasks(["STS12"])  # offline, and not in the cache
    model = load(folder)
    model.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="MTEB refuses"):
        model_meta(model, "acme/flow", "v1")
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"pip install 'sbert-flow\[mteb\]'"):
        mteb_tasks(["STS12"], data)
