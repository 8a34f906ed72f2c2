"""Owner of a chain of llama.cpp samplers, which chooses the next token from the logits."""

import ctypes
from collections.abc import Callable
from typing import Any

from llmrun.engine import capi
from llmrun.engine.context import Context
from llmrun.engine.model import Vocab
from llmrun.engine.params import SamplingParams, check_params
from llmrun.errors import EngineError, GrammarError

DRY_BREAKERS = ("\n", ":", '"', "*")


class Sampler:
    """A chain of llama.cpp samplers, with its own random state and history of accepted tokens."""

    def __init__(self, params: SamplingParams, vocab: Vocab, answered: tuple[int, ...] = ()) -> None:
        """`answered`: tokens of the answer that were not sampled here, which the grammar counts as its beginning.

        Raises UsageError for parameters out of bounds, GrammarError for a grammar that does not compile or fit."""
        check_params(params)
        self._lib = capi.lib()
        self._n_vocab = vocab.n_tokens
        self._grammar = _grammar(self._lib, params.grammar, vocab) if params.grammar else None
        self._chain = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        for part in _parts(self._lib, params, vocab):
            if not part:
                raise EngineError(f"llama.cpp refused a sampler: {capi.log.last_error('no reason given')}")
            self._lib.llama_sampler_chain_add(self._chain, part)
        self._candidates: Any = None
        if self._grammar is not None:
            for token in answered:
                if not self._allowed(token):
                    self.close()
                    raise GrammarError("the answer's prefix does not fit the grammar")
                self._lib.llama_sampler_accept(self._grammar, token)

    def sample(self, context: Context, index: int) -> int:
        """Choose the next token from the logits at batch index `index`, and remember it."""
        if self._grammar is None:
            return int(self._lib.llama_sampler_sample(self._chain, context.pointer, index))
        return self._sample_in_grammar(context, index)

    def accept(self, token: int) -> None:
        """Remember a chosen token, for penalties and grammar."""
        self._lib.llama_sampler_accept(self._chain, token)
        if self._grammar is not None:
            self._lib.llama_sampler_accept(self._grammar, token)

    def _sample_in_grammar(self, context: Context, index: int) -> int:
        # Testing the whole vocabulary against a grammar is slow: first sample freely and test that one token,
        # and only when the grammar refuses it sample again among those it allows (llama.cpp common/sampling.cpp).
        logits = context.logits(index)
        token = self._apply(logits, constrained=False)
        if not self._allowed(token):
            token = self._apply(logits, constrained=True)
            if not self._allowed(token):  # accepting it would end the process
                raise EngineError("no token of this model continues the answer by the grammar")
        self.accept(token)
        return token

    def _apply(self, logits: Any, *, constrained: bool) -> int:
        import numpy as np

        if self._candidates is None:
            kind = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
            self._candidates = np.zeros(self._n_vocab, dtype=kind)
        data = self._candidates
        data["id"] = np.arange(self._n_vocab, dtype=np.int32)
        data["logit"] = np.ctypeslib.as_array(logits, shape=(self._n_vocab,))
        data["p"] = 0
        pointer = data.ctypes.data_as(self._lib.llama_token_data_p)
        array = self._lib.llama_token_data_array(pointer, self._n_vocab, -1, False)
        if constrained:
            self._lib.llama_sampler_apply(self._grammar, ctypes.byref(array))
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise EngineError("the sampler chain chose no token", "check --samplers and the sampling settings")
        return int(array.data[array.selected].id)

    def _allowed(self, token: int) -> bool:
        one = (self._lib.llama_token_data * 1)((token, 1.0, 0.0))
        array = self._lib.llama_token_data_array(one, 1, -1, False)
        self._lib.llama_sampler_apply(self._grammar, ctypes.byref(array))
        return bool(one[0].logit != float("-inf"))

    def close(self) -> None:
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar:
            self._lib.llama_sampler_free(self._grammar)
            self._grammar = None


def check_sampling(params: SamplingParams, vocab: Vocab, answered: tuple[int, ...]) -> None:
    """Raise what `Sampler` raises, before the engine takes a request and its faults become those of an answer."""
    Sampler(params, vocab, answered).close()


def _grammar(lib: Any, text: str, vocab: Vocab) -> Any:
    from llmrun.engine.grammar import token_names

    for name in token_names(text):
        is_id = name.startswith("<[")
        if int(name[2:-2]) >= vocab.n_tokens if is_id else len(vocab.tokenize(name, parse_special=True)) != 1:
            raise GrammarError(f"the grammar's {name} is not one token of this model", "llmrun tokenize shows them")
    capi.log.lines.clear()
    sampler = lib.llama_sampler_init_grammar(vocab.pointer, text.encode("utf-8"), b"root")
    if not sampler:
        raise GrammarError(f"the grammar does not compile: {capi.log.last_error('llama.cpp gave no reason')}")
    return sampler


def _parts(lib: Any, params: SamplingParams, vocab: Vocab) -> list[Any]:
    """The chain's samplers in order, those that are off left out."""
    parts = []
    bias = list(params.logit_bias)
    if params.ignore_eos:
        bias += [(token, float("-inf")) for token in vocab.eog_tokens]
    if bias:
        entries = (lib.llama_logit_bias * len(bias))(*bias)
        parts.append(lib.llama_sampler_init_logit_bias(vocab.n_tokens, len(bias), entries))
    greedy = params.temp == 0
    builders = _builders(lib, params, vocab)
    for name in params.samplers:
        # Truncation cannot change which token is the likeliest, so greedy leaves it out.
        if not greedy or name in ("penalties", "dry"):
            part = builders[name]()
            if part is not None:
                parts.append(part)
    if greedy:
        parts.append(lib.llama_sampler_init_greedy())
    elif params.mirostat == 2:
        parts.append(lib.llama_sampler_init_mirostat_v2(params.seed, params.mirostat_tau, params.mirostat_eta))
    else:
        parts.append(lib.llama_sampler_init_dist(params.seed))
    return parts


def _builders(lib: Any, p: SamplingParams, vocab: Vocab) -> dict[str, Callable[[], Any]]:
    """Sampler name -> maker of the sampler, or of None where the parameters leave it off."""
    truncating = p.mirostat == 0  # mirostat does its own truncation
    penalties = p.repeat_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def when(on: bool, make: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        return lambda: make(*args) if on else None

    def dry() -> Any:
        if not p.dry_multiplier:
            return None
        breakers = (ctypes.c_char_p * len(DRY_BREAKERS))(*(text.encode() for text in DRY_BREAKERS))
        return lib.llama_sampler_init_dry(
            vocab.pointer,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            p.dry_last_n,
            breakers,
            len(DRY_BREAKERS),
        )

    return {
        "penalties": when(
            penalties and p.repeat_last_n > 0,
            lib.llama_sampler_init_penalties,
            vocab.n_tokens,
            p.repeat_last_n,
            p.repeat_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        ),
        "dry": dry,
        "top-n-sigma": when(truncating and p.top_n_sigma > 0, lib.llama_sampler_init_top_n_sigma, p.top_n_sigma),
        "top-k": when(truncating and p.top_k > 0, lib.llama_sampler_init_top_k, p.top_k),
        "typical": when(truncating and p.typical < 1, lib.llama_sampler_init_typical, p.typical, 1),
        "top-p": when(truncating and p.top_p < 1, lib.llama_sampler_init_top_p, p.top_p, 1),
        "min-p": when(truncating and p.min_p > 0, lib.llama_sampler_init_min_p, p.min_p, 1),
        "xtc": when(
            truncating and p.xtc_probability > 0,
            lib.llama_sampler_init_xtc,
            p.xtc_probability,
            p.xtc_threshold,
            1,
            p.seed,
        ),
        "temperature": when(True, lib.llama_sampler_init_temp_ext, p.temp, p.dynatemp_range, p.dynatemp_exponent),
    }
