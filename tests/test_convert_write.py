"""Writing: nothing under the final name until it is whole, whatever ends the work early."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmrun.convert.pipeline import convert, convert_cached, local_revision, preflight
from llmrun.errors import ConvertError, UsageError
from llmrun.report import Quiet
from tests.checkpoints import checkpoint, copied, edit_json, edit_weights, read_shard, write_shard
from tests.cli import environment
from tests.gguf_digest import GgufFile


class Stops(Quiet):
    """A report that raises when this share of the work is done."""

    def __init__(self, share: float, error: BaseException) -> None:
        super().__init__()
        self.share, self.error, self.said = share, error, 0

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        assert total is not None and self.said < done <= total
        self.said = done
        if done >= self.share * total:
            raise self.error


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_interrupt_leaves_nothing(share: float, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert(checkpoint("gemma3"), tmp_path / "out.gguf", report=Stops(share, KeyboardInterrupt()))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        convert(checkpoint("gemma3"), out, force=True, report=Stops(0.5, KeyboardInterrupt()))
    assert out.read_bytes() == b"before" and [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_progress_ends_with_the_total(tmp_path: Path) -> None:
    report = Stops(2.0, KeyboardInterrupt())
    convert(checkpoint("llama_spm"), tmp_path / "out.gguf", report=report)
    assert report.said == sum(tensor.n_bytes for tensor in GgufFile(tmp_path / "out.gguf").tensors)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's end: the same failure of the same call."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "from llmrun.cli import main; main(sys.argv[1:])"
    )
    out = tmp_path / "out.gguf"
    command = [sys.executable, "-c", script, "convert", str(checkpoint("gemma3")), str(out)]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment(), timeout=120)
    assert run.returncode == 1 and run.stderr.startswith(f"error: {out} could not be written"), run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C reaches the test as well")
def test_ctrl_c_ends_the_command_with_130(tmp_path: Path) -> None:
    folder = copied("gpt2", tmp_path)
    table = read_shard(folder / "model.safetensors")["wte.weight"]
    edit_weights(folder, {"wte.weight": table.repeat(10, axis=0)})
    out = tmp_path / "out.gguf"
    command = [sys.executable, "-m", "llmrun", "convert", str(folder), str(out), "--type", "q8_0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.gguf.*.part")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_an_existing_file_is_refused_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")
    with pytest.raises(ConvertError, match="is there already") as caught:
        convert(checkpoint("llama_spm"), out, report=Quiet())
    assert "--force" in caught.value.hint and out.read_bytes() == b"before"
    convert(checkpoint("llama_spm"), out, force=True, report=Quiet())
    assert out.read_bytes()[:4] == b"GGUF"


def test_no_part_of_the_checkpoint_is_written_over(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in before:
        with pytest.raises(UsageError, match="part of the checkpoint"):
            convert(folder, folder / name, force=True, report=Quiet())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_is_not_there_or_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="is no folder"):
        preflight(checkpoint("llama_spm"), tmp_path / "none" / "out.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ConvertError, match="not an ordinary file"):
            preflight(checkpoint("llama_spm"), tmp_path / "pipe", force=True)


def test_a_disk_without_room_is_noticed_before_any_weight_is_read(tmp_path: Path) -> None:
    """A shard of two terabytes, all of it a hole, so that it costs nothing here."""
    folder = copied("llama_spm", tmp_path)
    shard = folder / "model.safetensors"
    tensors = read_shard(shard)
    norm = tensors.pop("model.norm.weight")
    n_rows = 4_000_000_000
    header_only = {**tensors, "model.norm.weight": norm}
    write_shard(shard, header_only)
    data = shard.read_bytes()
    n = int.from_bytes(data[:8], "little")
    import json

    header = json.loads(data[8 : 8 + n])
    begin = header["lm_head.weight"]["data_offsets"][0]
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    assert begin == 0
    size = n_rows * 256 * 2
    header["lm_head.weight"] = {"dtype": "BF16", "shape": [n_rows, 256], "data_offsets": [end, end + size]}
    old = tensors["lm_head.weight"].nbytes
    for name, entry in header.items():
        if name not in ("__metadata__", "lm_head.weight"):
            entry["data_offsets"] = [offset - old for offset in entry["data_offsets"]]
    header["lm_head.weight"]["data_offsets"] = [end - old, end - old + size]
    head = json.dumps(header).encode()
    with shard.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end - old + size)
    started = time.monotonic()
    with pytest.raises(ConvertError, match=r"takes \d+ MB, and .* has \d+ MB free"):
        preflight(folder, tmp_path / "out.gguf")
    assert time.monotonic() - started < 30


def test_the_name_of_a_file_in_a_folder_says_what_it_is(tmp_path: Path) -> None:
    """As llama.cpp's converter names it."""
    found = preflight(checkpoint("llama_spm"), tmp_path, type="q8_0")
    assert found.path == tmp_path / "Tiny-Llama-1M-Chat-v1.0-Q8_0.gguf"


def test_a_hub_name_stands_for_the_folder(tmp_path: Path) -> None:
    """A snapshot's folder is named by its commit, which says nothing of the model."""
    folder = copied("llama_spm", tmp_path).rename(tmp_path / "0a1b2c3d")
    convert(folder, tmp_path / "out.gguf", name="some-org/Nice-Model-7B-Chat", report=Quiet())
    keys = GgufFile(tmp_path / "out.gguf").keys
    assert keys["general.name"] == ("STRING", "Nice Model 7B Chat")
    assert keys["general.organization"] == ("STRING", "Some Org")
    assert keys["general.finetune"] == ("STRING", "7b-Chat")


# What was converted on the way is kept.


def test_a_conversion_is_kept_until_the_checkpoint_changes(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    store, report = tmp_path / "store", Quiet()
    path, result = convert_cached(folder, local_revision(folder), "f16", store, report)
    assert result is not None and result.path == path and path.parent == store
    assert report.notes == ["converting Tiny-Llama-1M-Chat-v1.0 to GGUF; it is kept, so this happens once"]
    assert convert_cached(folder, local_revision(folder), "f16", store, report) == (path, None)
    assert len(report.notes) == 1
    other, result = convert_cached(folder, local_revision(folder), "q8_0", store, report)
    assert other != path and result is not None
    edit_json(folder / "tokenizer_config.json", chat_template="new")
    changed, result = convert_cached(folder, local_revision(folder), "f16", store, report)
    assert changed != path and result is not None


def test_a_local_revision_sees_every_file_that_counts(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    seen = {local_revision(folder)}
    (folder / "notes.txt").write_text("nothing that is read")
    (folder / ".cache").mkdir()
    assert local_revision(folder) in seen
    for name in ("config.json", "tokenizer.model", "generation_config.json"):
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
        seen.add(local_revision(folder))
    os.utime(folder / "model.safetensors", ns=(0, 0))
    seen.add(local_revision(folder))
    assert len(seen) == 5


def test_two_processes_make_a_kept_file_once(tmp_path: Path) -> None:
    folder, store = copied("llama_spm", tmp_path), tmp_path / "store"
    script = (
        "import sys; from pathlib import Path; from llmrun.report import Quiet;"
        "from llmrun.convert.pipeline import convert_cached;"
        "print(convert_cached(Path(sys.argv[1]), 'r', 'f16', Path(sys.argv[2]), Quiet())[1] is not None)"
    )
    command = [sys.executable, "-c", script, str(folder), str(store)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment()) for _ in range(3)]
    made = [run.communicate(timeout=120)[0].strip() for run in runs]
    assert sorted(made) == ["False", "False", "True"]
    assert len(list(store.glob("*.gguf"))) == 1
