"""Gives grammars to llama.cpp as the engine would, and samples a little under each.

Reads a JSON list of grammars from standard input and a model's path from the command line. For each it writes
`refused REASON` (by llmrun), `null` (by llama.cpp alone), `stuck` (no token fits), or `ok`, with the seconds of the
longest single call.
"""

import ctypes
import json
import sys
import time
from random import Random
from typing import Any

import llama_cpp.llama_cpp as lib

from llmrun.engine.grammar import check_grammar_text
from llmrun.errors import GrammarError

N_TOKENS = 30


def sample(sampler: Any, vocab: Any, random: Random) -> tuple[str, float]:
    count = lib.llama_vocab_n_tokens(vocab)
    data = (lib.llama_token_data * count)()
    longest_s = 0.0
    for _ in range(N_TOKENS):
        for token in range(count):
            data[token].id, data[token].logit, data[token].p = token, random.random(), 0
        array = lib.llama_token_data_array(data, count, -1, False)
        started = time.process_time()
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        best = max(range(count), key=lambda token: data[token].logit)
        if data[best].logit == float("-inf"):
            return "stuck", longest_s
        if lib.llama_vocab_is_eog(vocab, best):
            break
        lib.llama_sampler_accept(sampler, best)
        longest_s = max(longest_s, time.process_time() - started)
    return "ok", longest_s


def attempt(vocab: Any, grammar: str, random: Random) -> str:
    try:
        check_grammar_text(grammar)
    except GrammarError as error:
        return f"refused {error.message}"
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        return "null"
    end, longest_s = sample(sampler, vocab, random)
    lib.llama_sampler_free(sampler)
    return f"{end} {longest_s:.3f}"


def main() -> None:
    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, None)
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    vocab = lib.llama_model_get_vocab(lib.llama_model_load_from_file(sys.argv[1].encode(), params))
    random = Random(1)
    for grammar in json.load(sys.stdin):
        print(attempt(vocab, grammar, random).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
