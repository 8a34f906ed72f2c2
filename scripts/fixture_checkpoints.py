"""Tiny checkpoints, one an architecture, in the form their makers publish: transformers' own classes, our numbers.

The numbers repeat with a prime period, so an archive of them is small while any change of layout shows.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

_PERIOD = 4093
_rng = np.random.default_rng(20240229)
_NUMBERS = torch.from_numpy(_rng.standard_normal(_PERIOD).astype(np.float32))


@dataclass
class Fixture:
    """One checkpoint. `config` are the settings of `config_class`; `drop` names keys then taken out of config.json.

    `pre`: the reference's check-sum is overruled with this name. `tokenizer` writes the tokenizer's files.
    """

    name: str
    folder: str
    about: str
    config_class: str
    config: dict[str, Any]
    tokenizer: Callable[[Path], None]
    dtype: str = "bfloat16"
    model_class: str = "AutoModelForCausalLM"
    pre: str | None = None
    drop: tuple[str, ...] = ()
    set: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    shard_size: str = "5GB"
    rename: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None


def make(fixture: Fixture, root: Path) -> Path:
    """Writes the checkpoint under `root` and returns its folder."""
    folder = root / fixture.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = getattr(transformers, fixture.config_class)(**fixture.config)
    with transformers.modeling_utils.no_init_weights():
        model = getattr(transformers, fixture.model_class).from_config(config)
    model.tie_weights()
    fill(model)
    model = model.to(getattr(torch, fixture.dtype)).eval()
    model.save_pretrained(folder, max_shard_size=fixture.shard_size)
    if fixture.rename is not None:
        _rewrite(folder / "model.safetensors", fixture.rename)
    fixture.tokenizer(folder)
    _edit_config(folder / "config.json", fixture)
    for name, content in fixture.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")
    return folder


def fill(model: torch.nn.Module) -> None:
    """Every parameter a stretch of the same numbers, each starting elsewhere."""
    for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
        n = parameter.numel()
        start = (i * 577) % _PERIOD
        repeated = _NUMBERS.roll(-start).repeat(-(-n // _PERIOD))[:n].reshape(parameter.shape)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(1 + 0.1 * repeated if is_norm else 0.08 * repeated)


def _edit_config(path: Path, fixture: Fixture) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in fixture.drop:
        config.pop(name, None)
    config.update(fixture.set)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _rewrite(path: Path, rename: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    from safetensors.torch import load_file, save_file

    save_file({name: t.contiguous() for name, t in rename(load_file(path)).items()}, path, {"format": "pt"})


def oracle(folder: Path, fixture: Fixture) -> dict[str, Any]:
    """transformers' float32 logits for a few ids, for comparing with llama.cpp's on the converted file."""
    if fixture.model_class != "AutoModelForCausalLM":
        return {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    n_vocab = model.get_input_embeddings().weight.shape[0]
    ids = [(37 * i * i + 11 * i + 5) % min(n_vocab, 300) for i in range(9)]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    head = [round(value, 6) for value in logits[:16].tolist()]
    return {"ids": ids, "n_vocab": n_vocab, "argmax": int(logits.argmax()), "head": head}
