"""Loads the models named on standard input, one path a line, as the engine would, and generates a few tokens.

For each it writes `begin PATH`, then one of `refused REASON`, `failed REASON` (the library said no) and
`ok TOKENS`. What ggml aborts on ends the process with status 1 after a line `error: ...`.
`--unchecked` gives every file to the library.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from llmrun.errors import LlmrunError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import open_header

MEMORY_BYTES = 4 << 30  # what a file of 1 MB may make the library ask for
N_GENERATE = 4
LOGGED: list[str] = []


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def on_abort(message: bytes) -> None:
    os.write(1, b"error: llama.cpp aborted: " + message.replace(b"\n", b" ") + b"\n")
    os._exit(1)


@lib.llama_log_callback
def on_log(level: int, text: bytes, data: Any) -> None:
    if level >= 4:
        LOGGED.append(text.decode("utf-8", "replace").strip())


def tokenize(vocab: Any, text: bytes) -> Any:
    room = len(text) + 8
    tokens = (lib.llama_token * room)()
    n = lib.llama_tokenize(vocab, text, len(text), tokens, room, True, True)
    return tokens, n


def generate(path: Path) -> str:
    LOGGED.clear()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return f"failed {LOGGED[0] if LOGGED else 'load'}"
    context_params = lib.llama_context_default_params()
    context_params.n_ctx, context_params.n_batch, context_params.n_threads = 256, 64, 1
    context_params.embeddings = "bert" in path.name
    context = lib.llama_init_from_model(model, context_params)
    if not context:
        lib.llama_model_free(model)
        return f"failed {LOGGED[0] if LOGGED else 'context'}"
    answer = decode(model, context)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return answer


def decode(model: Any, context: Any) -> str:
    vocab = lib.llama_model_get_vocab(model)
    tokens, n = tokenize(vocab, b"the h\xc3\xa9llo <|im_start|>")
    if n <= 0:
        return "failed tokenize"
    sampler = lib.llama_sampler_init_greedy()
    out = []
    batch = lib.llama_batch_get_one(tokens, min(n, 32))
    single = (lib.llama_token * 1)()
    for _ in range(N_GENERATE):
        status = lib.llama_decode(context, batch)
        if status:
            return f"failed decode {status}"
        if lib.llama_get_embeddings_seq(context, 0):
            return "ok embedded"
        single[0] = lib.llama_sampler_sample(sampler, context, -1)
        out.append(single[0])
        piece = ctypes.create_string_buffer(256)
        lib.llama_token_to_piece(vocab, single[0], piece, 256, 0, True)
        batch = lib.llama_batch_get_one(single, 1)
    lib.llama_sampler_free(sampler)
    return f"ok {' '.join(map(str, out))}"


def attempt(path: Path, checked: bool) -> str:
    try:
        if checked:
            check_model(open_header(path))
    except LlmrunError as fault:
        return f"refused {fault.message}"
    return generate(path)


def limit_memory() -> None:
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def main() -> None:
    limit_memory()
    os.environ["GGML_NO_BACKTRACE"] = "1"
    abort = lib._lib.ggml_set_abort_callback
    abort.argtypes, abort.restype = [type(on_abort)], ctypes.c_void_p
    abort(on_abort)
    lib.llama_log_set(on_log, None)
    lib.llama_backend_init()
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        print(f"begin {path}", flush=True)
        print(attempt(path, "--unchecked" not in sys.argv), flush=True)


if __name__ == "__main__":
    main()
