from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sbert_flow import build_model, fit_flow, load
from sbert_flow.modules import save


@pytest.fixture
def model(tiny_encoder, sentences):
    model = build_model(tiny_encoder)
    fit_flow(model, sentences[:100], recipe="noise", show_progress_bar=False)
    return model


def test_round_trip_and_replacement(model, tmp_path, sentences):
    save(model, tmp_path / "a" / "m")
    save(model, tmp_path / "a" / "m")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["m"]
    np.testing.assert_array_equal(load(tmp_path / "a" / "m").encode(sentences[:5]), model.encode(sentences[:5]))


@pytest.mark.parametrize("moment", ["flow", "first rename", "second rename"])
def test_an_interrupted_save_leaves_what_was_there(model, tmp_path, monkeypatch, moment):
    save(model, tmp_path / "m")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "m").iterdir()}

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    if moment == "flow":
        monkeypatch.setattr(type(model[-1]), "save", interrupted)
    else:
        renames, stop = [], {"first rename": 1, "second rename": 2}[moment]

        def rename(self, target):
            renames.append(target)
            if len(renames) == stop:
                raise KeyboardInterrupt
            return original(self, target)

        original = Path.rename
        monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        save(model, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "m").iterdir()} == before


def test_other_content_is_never_overwritten(model, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else than a model"):
        save(model, tmp_path / "notes")
    with pytest.raises(FileExistsError, match="is a file"):
        save(model, tmp_path / "notes" / "diary.txt")
    save(model, tmp_path / "m")
    for more in ("diary.txt", ".git", "results"):
        (tmp_path / "m" / more).mkdir()
        with pytest.raises(FileExistsError, match="or more than that"):
            save(model, tmp_path / "m")
        (tmp_path / "m" / more).rmdir()
    assert (tmp_path / "notes" / "diary.txt").read_text() == "mine"


def test_an_encoder_is_never_replaced(model, tiny_encoder, tmp_path, monkeypatch):
    SentenceTransformer(tiny_encoder).save_pretrained(str(tmp_path / "enc"))
    with pytest.raises(FileExistsError, match="holds something else"):
        save(model, tmp_path / "enc")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FileExistsError, match="Name one inside it"):
        save(model, ".")


def rename_module(folder, name):
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = name
    (folder / "modules.json").write_text(json.dumps(modules))


def test_load_imports_no_other_package(model, tmp_path, monkeypatch):
    save(model, tmp_path / "m")
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\nPath('pwned').touch()\nclass FlowLayer: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    rename_module(tmp_path / "m", "evil_module.FlowLayer")
    with pytest.raises(ValueError, match=r"'evil_module.FlowLayer', but sbert_flow.load imports classes of"):
        load(tmp_path / "m")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["sbert_flow.modules.flow_layer.Path", "sbert_flow.future.BetterLayer"])
def test_unknown_classes_of_our_own(model, tmp_path, name):
    save(model, tmp_path / "m")
    rename_module(tmp_path / "m", name)
    with pytest.raises(ValueError, match="which this version of sbert-flow does not have"):
        load(tmp_path / "m")


def test_load_never_takes_the_flag(tmp_path):
    flag = {"trust_remote_code": True}
    for options in (flag, {"config_kwargs": flag}, {"model_kwargs": flag}, {"processor_kwargs": flag}):
        with pytest.raises(TypeError, match="never runs code"):
            load(tmp_path, **options)


def test_missing_models(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no modules\.json"):
        load(tmp_path)
    with pytest.raises(OSError):
        load(tmp_path / "nothing" / "there")


@pytest.mark.parametrize("name", ["typo", "acme/typo", "my model"])
@pytest.mark.parametrize("loader", [load, build_model])
def test_a_name_that_is_neither_a_folder_nor_on_the_hub(loader, name):
    with pytest.raises(OSError, match=f"there is no folder '{name}', and .* hub"):
        loader(name)


def test_a_bare_encoder_is_pointed_to_the_command_that_takes_it(tiny_encoder):
    with pytest.raises(FileNotFoundError, match="sbert-flow compare"):
        load(tiny_encoder)


def test_a_model_without_a_flow_loads_too(minilm):
    assert isinstance(load(minilm), SentenceTransformer)
