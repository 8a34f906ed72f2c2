"""The built-in names, and the user's own."""

from pathlib import Path

import pytest

from llmrun.errors import UsageError
from llmrun.models.catalog import Catalog, builtin_file, load_catalog, user_file
from llmrun.models.catalog_file import read_catalog
from llmrun.models.refs import HubRef, PypiRef, parse_ref


def own(text: str | bytes) -> Catalog:
    """The catalogue with this user's file."""
    path = user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return load_catalog()


def test_what_is_built_in() -> None:
    catalog = load_catalog()
    assert len(catalog.entries) >= 17 and catalog.default is None
    smollm2 = catalog.entries["smollm2"]
    assert smollm2.size_bytes == 98_362_432 and smollm2.licence == "Apache-2.0"
    gemma = catalog.entries["gemma3-270m"]
    ref = parse_ref(gemma.sources[0])
    assert isinstance(ref, PypiRef) and [part.member[-2:] for part in ref.parts] == ["00", "01", "02", "03"]
    assert "ai.google.dev/gemma/terms" in gemma.licence_note
    for entry in catalog.entries.values():
        assert entry.licence and entry.description and entry.params, entry.name
        assert isinstance(parse_ref(entry.sources[0]), HubRef | PypiRef)
        assert bool(entry.licence_note) == entry.licence.startswith(("Gemma", "Llama")), entry.name


def test_the_second_reading_is_the_same_and_sees_changes(home: Path) -> None:
    first = load_catalog()
    assert (home / "cache" / "catalogue.json").exists()
    assert load_catalog() == first
    changed = own('[mine]\nsource = "org/repo:Q4_0"\ntemp = 0.5\n')
    assert changed.entries["mine"].defaults == {"temp": 0.5}
    assert load_catalog() == changed
    user_file().unlink()
    assert load_catalog() == first
    (home / "cache" / "catalogue.json").write_text('{"stamp": ')
    assert load_catalog() == first


def test_names_in_other_spellings() -> None:
    catalog = load_catalog()
    for text in ("qwen3-0.6b", "Qwen3-0.6B", "qwen3:0.6b", "QWEN3:0.6B"):
        found = catalog.find(text)
        assert found is not None and found.name == "qwen3-0.6b"
    assert catalog.find("qwen") is None
    assert catalog.near("smolm2")[0] == "smollm2"
    assert "llama3.2-1b" in catalog.near("llama3.2")
    assert catalog.near("zzzz") == []


def test_the_users_file_wins() -> None:
    catalog = own(
        'default = "fast"\n[fast]\nsource = "smollm2"\n\n[smollm2]\ntemp = 0.7\nsystem = "Be brief."\n'
        '\n["qwen3-4b"]\nsource = ["unsloth/Qwen3-4B-GGUF:UD-Q4_K_XL", "hf:Qwen/Qwen3-4B-GGUF"]\n'
    )
    assert catalog.default == "fast"
    changed = catalog.entries["smollm2"]
    assert changed.defaults["temp"] == 0.7 and changed.defaults["system"] == "Be brief."
    assert (
        changed.defaults["top-p"] == read_catalog(builtin_file(), Path("none")).entries["smollm2"].defaults["top-p"]
    )
    assert changed.sha256 is not None and changed.sources[0].startswith("pypi:")
    replaced = catalog.entries["qwen3-4b"]
    assert replaced.sources == ("unsloth/Qwen3-4B-GGUF:UD-Q4_K_XL", "hf:Qwen/Qwen3-4B-GGUF")
    assert replaced.defaults == {} and replaced.licence == ""


def test_a_template_lies_beside_the_file_that_names_it() -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    (user_file().parent / "chat.jinja").write_text("x", encoding="utf-8")
    catalog = own('[mine]\nsource = "org/repo"\ntemplate = "chat.jinja"\n')
    assert catalog.entries["mine"].defaults["template"] == str(user_file().parent / "chat.jinja")


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    catalog = own(b'\xef\xbb\xbf[mine]\r\nsource = "org/repo"\r\n')
    assert catalog.entries["mine"].sources == ("org/repo",)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('[a]\nsource = "org/repo"\n\ntmep = 1\n', 4, "'a' has an unknown key 'tmep'", "did you mean temp?"),
        ('[a]\nsource = "org/repo"\ntop_k = 1\n', 3, "unknown key 'top_k'", "did you mean top-k?"),
        (
            '[a]\nsource = "org/repo"\n# temp\ntemp = "hot"\n',
            4,
            "'temp' of 'a' must be a number from 0, not 'hot'",
            "",
        ),
        ('[a]\nsource = "org/repo"\ntop-p = 1.5\n', 3, "must be a number from 0 to 1, not 1.5", ""),
        ('[a]\nsource = "org/repo"\nctx = true\n', 3, "must be a whole number from 1, not True", ""),
        ('[b]\nsource = "x"\n[a]\nsource = []\n', 4, "'source' of 'a' must be a reference, or a list of them", ""),
        ('[a]\nsource = """\nwhat is\nthis?"""\n', 2, "is no model", "the model comes first"),
        ('[a]\nsource = "models/m.gguf"\n', 2, "depends on the folder one is in", "write the whole path"),
        ("\n\n[a]\ntemp = 1\n", 3, "'a' has no source", "ORG/REPO:QUANT"),
        ('[a]\nparts = ["org/repo"]\n', 2, "'parts' of 'a' must all be pypi: references", ""),
        ('[qwen-0.6b]\nsource = "org/repo"\n', 1, "'6b' is a table inside 'qwen-0'", '["qwen-0.6b"]'),
        ('a = "org/repo"\n', 1, "'a' must be a table", "write [a]"),
        ("default = 1\n", 1, "default must be a model's name", ""),
        ('[a]\nsource = "org/repo\n', 2, "Illegal character", "in quotes"),
        ('[a]\nsource = "x"\n[a]\nsource = "y"\n', 3, "Cannot declare ('a',) twice", ""),
        ('[a]\nsource = "x"\nsha256 = "abc"\n', 3, "'sha256' of 'a' must be 64 hex digits", ""),
        ('[a]\nsource = "x"\n"k\\u001b[31m" = 1\n', 3, r"unknown key 'k\x1b[31m'", ""),
    ],
)
def test_faults_are_named_with_their_line(text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        own(text)
    assert caught.value.message.startswith(f"{user_file()}, line {line}: ")
    assert message in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_status == 2


def test_a_file_that_is_no_utf8_text_says_so() -> None:
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        own("[a]\n".encode("utf-16"))


def test_the_built_in_file_is_sound(tmp_path: Path) -> None:
    """Without the copy that a first reading leaves."""
    assert read_catalog(builtin_file(), tmp_path / "none").entries == load_catalog().entries
