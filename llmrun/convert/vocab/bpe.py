"""Byte-level BPE vocabularies (GPT-2's kind): tokens, types, merges."""

import gguf
from gguf import TokenType

from llmrun.convert.config import Config
from llmrun.convert.vocab.pre import find_pre
from llmrun.convert.vocab.special import add_special
from llmrun.convert.vocab.tokenizer import FastTokenizer, TokenizerFiles, VocabularyWish
from llmrun.errors import ConvertError

WORD_START = "\u2581"


def add(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """The vocabulary of a checkpoint with a byte-level tokenizer.json."""
    tokenizer = FastTokenizer(files, config.get("model_type"))
    tokens, types = token_list(tokenizer, wish.n_tokens)
    kv.add_tokenizer_model("gpt2")
    kv.add_tokenizer_pre(find_pre(tokenizer, wish.pre))
    kv.add_token_list(tokens)
    kv.add_token_types(types)
    add_special(kv, files, config, wish, merges=merge_lines(files))


def token_list(tokenizer: FastTokenizer, n_tokens: int) -> tuple[list[str], list[int]]:
    """The text and type of each of `n_tokens` ids; ids that the tokenizer lacks become unused fillers."""
    added = tokenizer.added
    # Where ids have holes, the library may give an added token the id of another one; it decodes to the added one.
    by_id = {id: text for text, id in tokenizer.vocab.items()} | {id: token.content for id, token in added.items()}
    check_size(max(by_id, default=-1) + 1, n_tokens)
    normal, unused = int(TokenType.NORMAL), int(TokenType.UNUSED)
    tokens = [by_id.get(id, f"[PAD{id}]") for id in range(n_tokens)]
    types = [normal if id in by_id else unused for id in range(n_tokens)]
    for id, token in added.items():
        text = token.content if token.normalized else tokenizer.normal_form(token.content)
        is_control = token.special or looks_special(text)
        tokens[id] = text if is_control else text.replace(WORD_START, " ")
        types[id] = int(TokenType.CONTROL if is_control else TokenType.USER_DEFINED)
    return tokens, types


def check_size(n_ids: int, n_rows: int) -> None:
    """Raises ConvertError where the tokenizer has ids that the embedding has no row for."""
    if n_ids > n_rows:
        raise ConvertError(
            f"the tokenizer has ids up to {n_ids - 1} ({n_ids} tokens), the embedding only {n_rows} rows",
            "the tokenizer and the weights are of different models, or tokens were added without resizing the "
            "embedding: save the model again after resize_token_embeddings",
        )


def looks_special(token: str) -> bool:
    """Control tokens that published tokenizers do not mark as such."""
    if token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    ends = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    return any(token.startswith(start) and token.endswith(end) for start, end in ends)


def merge_lines(files: TokenizerFiles) -> list[str]:
    """tokenizer.json's merges as "left right"; spaces inside a part are written as their letter."""
    model = (files.tokenizer or {}).get("model")
    merges = model.get("merges") if isinstance(model, dict) else None
    try:
        return [merge if isinstance(merge, str) else _line(*merge) for merge in merges or []]
    except (TypeError, AttributeError):
        raise ConvertError("tokenizer.json's merges are no pairs of tokens", "fetch it again") from None


def _line(left: str, right: str) -> str:
    return f"{left.replace(' ', chr(0x120))} {right.replace(' ', chr(0x120))}"
