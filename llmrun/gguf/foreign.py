"""Files that are taken for a GGUF and are not: what each is, from its first bytes."""

import re

from llmrun.errors import ModelFileError
from llmrun.report import size_text

HEAD_BYTES = 1024

_LEGACY = {b"lmgg": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla"}


def refuse_foreign(head: bytes, file_size: int, name: str) -> ModelFileError:
    """The error for a file whose first bytes are `head` and not a GGUF's."""
    if file_size == 0:
        return ModelFileError(f"{name} is empty (0 bytes)", "fetch it again: the download left nothing")
    if head.startswith(b"version https://git-lfs"):
        return _lfs_pointer(head, name)
    what, hint = _describe(head, file_size)
    return ModelFileError(f"{name} is {what}, not a GGUF", hint)


def _lfs_pointer(head: bytes, name: str) -> ModelFileError:
    size = re.search(rb"^size (\d{1,18})\s*$", head, re.MULTILINE)
    real = f" (real size {size_text(int(size[1]))})" if size else ""
    return ModelFileError(
        f"{name} is a Git LFS pointer{real}; fetch it with git lfs pull or llmrun pull",
        "a clone without git-lfs holds only these short text files in place of the models",
    )


def _describe(head: bytes, file_size: int) -> tuple[str, str]:
    again = "fetch the file itself: the link led somewhere else"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "an HTML page" if b"html" in head.lower() else "an XML document", again
    if _is_safetensors(head, file_size):
        return "a safetensors file", "give the folder or repo that holds it: llmrun convert FOLDER"
    if text.startswith((b"{", b"[")):
        return "a JSON text", again
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive (perhaps a PyTorch checkpoint)", "unpack it, or convert its checkpoint folder"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "a pickle (an old PyTorch checkpoint)", "look for safetensors or GGUF files of the same model"
    if head.startswith(b"\x1f\x8b"):
        return "gzip data", "unpack it first: gunzip"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd data", "unpack it first: zstd -d"
    if head[257:262] == b"ustar":
        return "a tar archive", "unpack it first: tar xf"
    if head[:4] in _LEGACY:
        return f"an old {_LEGACY[head[:4]]} file, from before August 2023", "fetch a GGUF of the model"
    if not head.strip(b"\0"):
        return "a run of zeros", "the download reserved the space and never filled it: fetch it again"
    start = head[:4].decode("ascii") if head[:4].isalnum() else head[:4].hex(" ")
    return f"a file that starts with {start!r}", "a GGUF starts with the letters GGUF"


def _is_safetensors(head: bytes, file_size: int) -> bool:
    return len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= file_size - 8
