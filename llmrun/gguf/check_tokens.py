"""Checks a header's tokenizer against what llama.cpp's vocabulary loader and tokenizers abort on."""

from collections.abc import Collection

from llmrun.errors import ModelFileError
from llmrun.gguf.keys import Keys
from llmrun.gguf.values import FLOAT32, INT32, NumberArray, shown

_MODEL = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"
# The ids that llama.cpp assumes where the file names none: bos, eos, and whether they are added to a prompt.
_DEFAULTS = {
    "llama": (1, 2, True, False),
    "bert": (101, None, True, False),
    "gpt2": (11, 11, False, False),
    "t5": (None, 1, False, True),
    "plamo2": (1, 2, False, False),
}


def check_tokens(keys: Keys) -> None:
    """Raises ModelFileError for a tokenizer that is missing or that llama.cpp would abort on."""
    model = keys.text(_MODEL)
    if model in (None, "none", "no_vocab"):
        raise ModelFileError(
            f"{keys.header.name} holds no tokenizer ({_MODEL} is {model or 'missing'})",
            "fetch a file that was converted together with its tokenizer",
        )
    tokens = keys.texts(_TOKENS)
    if not tokens:
        keys.refuse(_TOKENS, "is missing or empty: the file holds no tokens")
    encoded = tokens.encoded
    distinct = _check_distinct(keys, encoded)
    for key, types in (("scores", (FLOAT32, INT32)), ("token_type", (INT32,))):
        _check_length(keys, f"tokenizer.ggml.{key}", types, len(encoded))
    _check_special(keys, model or "", len(encoded))
    if model == "llama":
        _check_bytes(keys, distinct)
    if model == "rwkv" and not {b"\\n", b"\\x0a", b"\\x0A", b"\n"} & distinct:
        keys.refuse(_TOKENS, "has no token for a line break")


def _check_distinct(keys: Keys, encoded: tuple[bytes, ...]) -> set[bytes]:
    """llama.cpp asserts that no two tokens have the same text, which it reads up to a NUL."""
    distinct = set(encoded)
    if b"" in distinct or b"\0" in b"".join(encoded):
        texts = (text.partition(b"\0")[0] for text in encoded)
        distinct = {text or b"[EMPTY_%d]" % id for id, text in enumerate(texts)}
    n_same = len(encoded) - len(distinct)
    if n_same:
        keys.refuse(_TOKENS, f"has {n_same} tokens with the text of another, of {len(encoded)}")
    return distinct


def _check_length(keys: Keys, key: str, types: Collection[int], n_tokens: int) -> None:
    if key not in keys.header.metadata:
        return
    value = keys.header.metadata[key]
    if not isinstance(value, NumberArray) or value.type not in types or len(value) < n_tokens:
        keys.refuse(key, f"is {shown(value)}, not one number for each of {n_tokens} tokens")


def _check_special(keys: Keys, model: str, n_tokens: int) -> None:
    """A prompt that starts or ends with a token that does not exist aborts the process."""
    bos, eos, add_bos, add_eos = _DEFAULTS.get(model, (None, None, False, False))
    for name, default, adds in (("bos", bos, add_bos), ("eos", eos, add_eos)):
        id = keys.integer(f"tokenizer.ggml.{name}_token_id")
        if id is not None and id >= n_tokens:
            # -1 in 32 bits is how some converters write "none".
            if id != 0xFFFFFFFF:
                keys.refuse(f"tokenizer.ggml.{name}_token_id", f"is {id}, of {n_tokens} tokens")
            id = None
        exists = id is not None or (default is not None and default < n_tokens)
        wanted = keys.flag(f"tokenizer.ggml.add_{name}_token")
        always = model == "bert" and name == "bos"
        if not exists and (always or (adds if wanted is None else wanted)):
            keys.refuse(f"tokenizer.ggml.{name}_token_id", "is missing, and a prompt needs that token")
    sep = keys.integer("tokenizer.ggml.seperator_token_id")
    if model == "bert" and (102 if sep is None or sep >= n_tokens else sep) >= n_tokens:
        keys.refuse("tokenizer.ggml.seperator_token_id", "is missing, and a prompt needs that token")


def _check_bytes(keys: Keys, known: Collection[bytes]) -> None:
    """Text outside the vocabulary is spelled in bytes, and a byte without a token ends the process."""
    missing = [byte for byte in range(256) if b"<0x%02X>" % byte not in known and bytes([byte]) not in known]
    if missing:
        keys.refuse(_TOKENS, f"has no token for {len(missing)} of the 256 bytes")
