"""Architectures: what llmrun does right where llama.cpp's converter stops or errs, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrun.convert import registry
from llmrun.convert.pipeline import convert, preflight
from llmrun.errors import ConvertError
from llmrun.report import Quiet
from tests.checkpoints import FIXTURES, checkpoint, copied, edit_json, edit_weights, expected, read_shard
from tests.gguf_digest import GgufFile, describe


def described(folder: Path, out: Path, **more: Any) -> dict[str, Any]:
    convert(folder, out, force=True, report=Quiet(), **more)
    return describe(out)


def same_as_reference(name: str, folder: Path, out: Path, type: str = "f16") -> None:
    found = described(folder, out, type=type, pre=expected(name)["pre"])
    wanted = expected(name)["outtypes"][type]
    assert found["kv"] == wanted["kv"] and found["tensors"] == wanted["tensors"]


def test_every_registered_architecture_is_there() -> None:
    """And every file of arch/ is registered."""
    modules = set()
    for name, place in registry.ARCHITECTURES.items():
        assert registry.find_model(name).__name__ == place.partition(".")[2]
        modules.add(place.partition(".")[0])
    files = {path.stem for path in (Path(registry.__file__).parent / "arch").glob("*.py")} - {"__init__"}
    assert modules == files


def test_every_architecture_has_a_fixture() -> None:
    """One of each class, since several names lead to some of them."""
    named = {json.loads((checkpoint(name) / "config.json").read_text())["architectures"][0] for name in FIXTURES}
    assert {registry.ARCHITECTURES[name] for name in named} == set(registry.ARCHITECTURES.values())


def test_gpt2_s_stored_masks_are_left_out(tmp_path: Path) -> None:
    """The published GPT-2 has them; llama.cpp's converter stops at the first: "Can not map tensor"."""
    folder = copied("gpt2", tmp_path)
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, 16, 16), "<f4") for i in range(2)}
    edit_weights(folder, {**masks, "h.0.attn.masked_bias": np.full((), -1e4, "<f4")})
    same_as_reference("gpt2", folder, tmp_path / "out.gguf")


def test_gpt2_without_n_ctx(tmp_path: Path) -> None:
    """transformers no longer writes it; llama.cpp's converter stops with a KeyError."""
    folder = copied("gpt2", tmp_path)
    edit_json(folder / "config.json", n_ctx=None)
    same_as_reference("gpt2", folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    "change", [{"num_kv_heads": None}, {"num_kv_heads": 4}, {"n_head_kv": 4, "num_kv_heads": None}]
)
def test_falcon_7b_has_one_key_head_whatever_it_says(change: dict[str, Any], tmp_path: Path) -> None:
    """Falcon-7B has no num_kv_heads, for which transformers fills in the number of heads; it has one."""
    folder = copied("falcon", tmp_path)
    edit_json(folder / "config.json", **change)
    same_as_reference("falcon", folder, tmp_path / "out.gguf")


def test_a_falcon_with_alibi_is_refused(tmp_path: Path) -> None:
    """llama.cpp would rotate instead, and answer nonsense."""
    folder = copied("falcon", tmp_path)
    edit_json(folder / "config.json", alibi=True)
    with pytest.raises(ConvertError, match="ALiBi"):
        preflight(folder, tmp_path / "out.gguf")


def test_a_stablelm_12b_with_a_norm_missing(tmp_path: Path) -> None:
    folder = copied("stablelm_12b", tmp_path)
    edit_weights(folder, {"model.layers.1.self_attn.k_layernorm.norms.1.weight": None})
    with pytest.raises(ConvertError, match="not complete"):
        preflight(folder, tmp_path / "out.gguf", pre="stablelm2")


def test_experts_stored_stacked_are_the_same_file(tmp_path: Path) -> None:
    """transformers 5 writes one tensor for all experts' gates and ups, and one for their downs."""
    folder = copied("qwen3_moe", tmp_path)
    tensors = read_shard(folder / "model.safetensors")
    change: dict[str, Any] = {}
    for layer in range(2):
        base = f"model.layers.{layer}.mlp.experts"
        parts = {
            what: np.stack([tensors[f"{base}.{i}.{what}_proj.weight"] for i in range(4)])
            for what in ("gate", "up", "down")
        }
        change |= {name: None for name in tensors if name.startswith(f"{base}.")}
        change[f"{base}.gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        change[f"{base}.down_proj"] = parts["down"]
    edit_weights(folder, change)
    found = described(folder, tmp_path / "out.gguf", type="bf16", pre="qwen2")
    wanted = expected("qwen3_moe")["outtypes"]["bf16"]
    assert found["kv"] == wanted["kv"]
    by_name = {tensor["name"]: tensor for tensor in wanted["tensors"]}
    assert {tensor["name"]: tensor for tensor in found["tensors"]} == by_name


def test_rope_settings_in_transformers_5_s_form(tmp_path: Path) -> None:
    """rope_parameters takes the place of rope_theta and rope_scaling."""
    folder = copied("llama_yarn", tmp_path)
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    edit_json(
        folder / "config.json", rope_theta=None, rope_scaling=None,
        rope_parameters={**scaling, "rope_theta": 10000.0},
    )  # fmt: skip
    same_as_reference("llama_yarn", folder, tmp_path / "out.gguf", type="f32")


def test_an_embedding_model_of_qwen_s(tmp_path: Path) -> None:
    """Qwen3-Embedding: pooling by the last token, stated beside the weights."""
    folder = copied("qwen3_moe", tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    (folder / "modules.json").write_text(
        '[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]'
    )
    edit_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    tensors = read_shard(folder / "model.safetensors")
    experts = {name: None for name in tensors if ".mlp." in name}
    shapes = {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
    dense = {
        f"model.layers.{i}.mlp.{name}.weight": np.zeros(shape, "<u2")
        for i in range(2)
        for name, shape in shapes.items()
    }
    edit_weights(folder, {**experts, **dense})
    convert(folder, tmp_path / "out.gguf", pre="qwen2", report=Quiet())
    assert GgufFile(tmp_path / "out.gguf").keys["qwen3.pooling_type"] == ("UINT32", 3)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ConvertError, match="pools in a way"):
        preflight(folder, tmp_path / "other.gguf", pre="qwen2")


@pytest.mark.parametrize("path", ["../..", "/etc", "1_Pooling/../../x"])
def test_modules_json_cannot_name_folders_elsewhere(path: str, tmp_path: Path) -> None:
    folder = copied("bert", tmp_path)
    (folder / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": path}]))
    with pytest.raises(ConvertError, match=r"modules\.json names a folder"):
        preflight(folder, tmp_path / "out.gguf")


def test_an_unsupported_architecture_names_near_ones_and_the_way_on(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", architectures=["Qwen3NextForCausalLM"])
    with pytest.raises(ConvertError) as caught:
        preflight(folder, tmp_path / "out.gguf")
    assert "Qwen3NextForCausalLM is not supported" in caught.value.message
    assert "Qwen3ForCausalLM" in caught.value.message
    assert "--converter" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": None}, "names no architecture"),
        ({"architectures": []}, "names no architecture"),
        ({"architectures": [3]}, "names no architecture"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
        ({"num_hidden_layers": -1}, "not a count"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 2.5}, "num_attention_heads is 2.5"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"rms_norm_eps": 1e39}, "rms_norm_eps is 1e+39"),
        ({"rope_theta": [1]}, "rope_theta is [1]"),
        ({"rope_scaling": "linear"}, "rope_scaling is no object"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}}, "makes no sense"),
        ({"num_key_value_heads": 3}, "cannot be split into 3 heads"),
    ],
)
def test_an_absurd_config_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", **change)
    with pytest.raises(ConvertError) as caught:
        convert(folder, tmp_path / "out.gguf", report=Quiet())
    assert said in caught.value.message, caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_what_llama_cpp_would_abort_on_gets_no_name(tmp_path: Path) -> None:
    """A config.json that reads well and leads to a file the library cannot take."""
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", rms_norm_eps=-1.0)
    with pytest.raises(ConvertError, match="could not be run"):
        convert(folder, tmp_path / "out.gguf", report=Quiet())
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_unknown_rope_scaling_is_noted(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", rope_scaling={"rope_type": "spiral", "factor": 2.0})
    report = Quiet()
    convert(folder, tmp_path / "out.gguf", report=report)
    assert report.notes == ["rope scaling 'spiral' is not known and is left out"]
