"""WordPiece vocabularies (BERT's kind), written as llama.cpp reads them: word starts marked instead of word ends."""

import gguf
from gguf import TokenType

from llmrun.convert.config import Config
from llmrun.convert.vocab.bpe import WORD_START, token_list
from llmrun.convert.vocab.pre import find_pre
from llmrun.convert.vocab.special import add_special
from llmrun.convert.vocab.tokenizer import FastTokenizer, TokenizerFiles, VocabularyWish


def add(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """The vocabulary of a BERT-like checkpoint."""
    tokenizer = FastTokenizer(files, config.get("model_type"))
    tokens, types = token_list(tokenizer, wish.n_tokens)
    kv.add_token_type_count(config.optional_integer("type_vocab_size") or 1)
    kv.add_tokenizer_model("bert")
    kv.add_tokenizer_pre(find_pre(tokenizer, wish.pre, needed=False))
    kv.add_token_list([_marked(token, type) for token, type in zip(tokens, types, strict=True)])
    kv.add_token_types(types)
    add_special(kv, files, config, wish)


def _marked(token: str, type: int) -> str:
    if type == TokenType.CONTROL:
        return token
    return token[2:] if token.startswith("##") else WORD_START + token
