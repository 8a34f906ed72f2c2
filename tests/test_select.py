"""Which file of a repo a reference means."""

import pytest

from llmrun.errors import LlmrunError, NotFoundError, UsageError
from llmrun.models.quants import NamedFile, Quant, group_models, parse_quant, split_parts
from llmrun.models.select import choose, choose_file

REPO = "mock/repo"
SEL_01 = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "M.Q8_0.gguf"]


def files(*names: str, size_bytes: int = 1000) -> list[NamedFile]:
    return [NamedFile(name, size_bytes * (n + 1)) for n, name in enumerate(names)]


def chosen(names: list[str], quant: str | None = None, fit_bytes: int | None = None) -> list[str]:
    choice = choose(files(*names), REPO, quant, fit_bytes)
    return [file.name for file in choice.model.files]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("m-Q4_K_M.gguf", Quant("Q4_K_M")),
        ("M.Q8_0.gguf", Quant("Q8_0")),
        ("smollm2-360m-instruct-q8_0.gguf", Quant("Q8_0")),
        ("tinyllama_q4_0.gguf", Quant("Q4_0")),
        ("m-UD-Q4_K_XL.gguf", Quant("Q4_K_XL", "UD")),
        ("m.i1-IQ2_XXS.gguf", Quant("IQ2_XXS", "i1")),
        ("Q3_K_M/m-Q3_K_M-00001-of-00003.gguf", Quant("Q3_K_M")),
        ("BF16/model-00001-of-00002.gguf", Quant("BF16")),
        ("ggml-model-fp16.gguf", Quant("F16")),
        ("m.f16.q6_k.gguf", Quant("Q6_K")),
        ("m-Q4_K_M-fp16.gguf", Quant("Q4_K_M")),
        ("m-Q6_K_L.gguf", Quant("Q6_K_L")),
        ("m-Q4_0_4_8.gguf", Quant("Q4_0_4_8")),
        ("gpt-oss-20b-mxfp4.gguf", Quant("MXFP4")),
        ("m-TQ1_0.gguf", Quant("TQ1_0")),
        ("UD-Q4_K_XL", Quant("Q4_K_XL", "UD")),
        ("model.gguf", None),
        ("Qwen3-30B-A3B.gguf", None),
        ("xq4_0x.gguf", None),
    ],
)
def test_type_of_a_file_name(name: str, quant: Quant | None) -> None:
    assert parse_quant(name) == quant


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q4_K_M.gguf", "m-Q4_K_M.gguf"),
        ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("Q8_0", "M.Q8_0.gguf"),
        ("Q8", "M.Q8_0.gguf"),
        ("q4_k_s", "m-Q4_K_S.gguf"),
        ("m-q4_k_s.gguf", "m-Q4_K_S.gguf"),
        ("m-UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
    ],
)
def test_every_spelling_finds_its_file(quant: str, expected: str) -> None:
    """SEL-01."""
    assert chosen(SEL_01, quant) == [expected]


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        ("Q4_K", "'Q4_K' can be Q4_K_M, Q4_K_S in mock/repo"),
        ("Q4", "'Q4' can be Q4_K_M, Q4_K_S in mock/repo"),
        ("Q5_K_M", "mock/repo has no Q5_K_M"),
        ("UD-Q4_K_M", "mock/repo has no UD-Q4_K_M"),
        ("K_M", "mock/repo has no K_M"),
        ("nonsense", "mock/repo has no nonsense"),
    ],
)
def test_ambiguous_and_absent_types_name_what_there_is(quant: str, message: str) -> None:
    """SEL-01: exit 2 with the list."""
    with pytest.raises(UsageError) as caught:
        chosen(SEL_01, quant)
    assert caught.value.message == message and caught.value.exit_status == 2
    if "no " in message:
        assert caught.value.hint == "it has Q8_0, Q4_K_M, Q4_K_S, UD-Q4_K_XL"


def test_a_short_type_is_taken_where_only_one_file_can_be_meant() -> None:
    assert chosen(["m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-Q5_K_M.gguf"], "Q4_K") == ["m-Q4_K_M.gguf"]
    assert chosen(["m-Q4_K.gguf", "m-Q4_K_M.gguf"], "Q4_K") == ["m-Q4_K.gguf"]


SPLIT = [f"Q3_K_M/m-Q3_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
SPLIT += [f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]


def test_a_split_model_in_a_subfolder_is_all_of_its_parts_and_no_others() -> None:
    """SEL-03."""
    assert chosen(SPLIT[::-1], "Q3_K_M") == SPLIT[:3]
    assert choose(files(*SPLIT), REPO, "Q8_0").model.size_bytes == 4000 + 5000
    assert [file.name for file in choose_file(files(*SPLIT), REPO, SPLIT[1]).files] == SPLIT[:3]


def test_a_split_model_without_one_of_its_parts_is_refused() -> None:
    with pytest.raises(NotFoundError, match=r"Q3_K_M is incomplete, .*00002-of-00003\.gguf is missing"):
        chosen([SPLIT[0], SPLIT[2]], "Q3_K_M")
    assert split_parts("m-00004-of-00003.gguf") is None


BESIDE = ["mmproj-m-Q8_0.gguf", "m-mmproj-f16.gguf", "m.imatrix.gguf", "m-lora-Q8_0.gguf", "m-MTP-Q8_0.gguf"]


def test_what_lies_beside_a_model_is_never_taken() -> None:
    names = [*BESIDE, "m-draft-Q8_0.gguf", "README.md", "model.safetensors", "m-Q8_0.gguf", "m-Q8_0.gguf.part"]
    assert chosen(names) == ["m-Q8_0.gguf"]
    assert chosen(names, "Q8_0") == ["m-Q8_0.gguf"]
    with pytest.raises(NotFoundError, match="holds no GGUF model"):
        chosen([*BESIDE, "model.safetensors"])


def test_a_repo_of_drafts_gives_its_draft() -> None:
    named = files("R1-DRAFT-0.5B-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf")
    assert choose(named, "org/R1-DRAFT-0.5B-GGUF").model.files[0].name == "R1-DRAFT-0.5B-Q4_K_M.gguf"


def test_a_file_beside_the_model_can_be_named_outright() -> None:
    model = choose_file(files("mmproj-m-Q8_0.gguf", "m-Q8_0.gguf"), REPO, "mmproj-m-Q8_0.gguf")
    assert model.files[0].name == "mmproj-m-Q8_0.gguf"


@pytest.mark.parametrize(
    ("names", "fit_bytes", "expected", "note"),
    [
        (["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], 1, "m-Q4_K_M.gguf", ""),
        (["m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"], None, "m-UD-Q4_K_M.gguf", ""),
        (["m-Q8_0.gguf"], 1, "m-Q8_0.gguf", ""),
        (["model.gguf"], None, "model.gguf", ""),
        (["m-Q2_K.gguf", "m-Q5_K_M.gguf", "m-Q8_0.gguf"], 2500, "m-Q5_K_M.gguf", "(2.0 kB), the best that fits"),
        (["m-Q2_K.gguf", "m-Q8_0.gguf", "m-BF16.gguf"], None, "m-Q8_0.gguf", "taking Q8_0 (2.0 kB), the best"),
        (["m-F16.gguf", "m-F32.gguf"], None, "m-F16.gguf", "no Q4_K_M"),
        (["m-Q5_K_M.gguf", "m-Q8_0.gguf"], 10, "m-Q5_K_M.gguf", "the smallest, though it is larger"),
    ],
)
def test_no_type_asked_for(names: list[str], fit_bytes: int | None, expected: str, note: str) -> None:
    choice = choose(files(*names), REPO, None, fit_bytes)
    assert choice.model.files[0].name == expected
    assert note in choice.note and bool(note) == bool(choice.note)


@pytest.mark.parametrize("names", [["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], ["a.gguf", "b.gguf"]])
def test_two_models_in_one_repo_have_to_be_named(names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(names)
    assert all(name in caught.value.message for name in names)
    assert chosen(names, names[1]) == [names[1]]


def test_a_file_name_that_is_not_there_names_a_near_one() -> None:
    with pytest.raises(NotFoundError) as caught:
        choose_file(files(*SEL_01), REPO, "m-Q4_K_MM.gguf")
    assert caught.value.hint == "did you mean hf:mock/repo/m-Q4_K_M.gguf?"
    assert choose_file(files(*SEL_01), REPO, "m-q4_k_m.GGUF").files[0].name == "m-Q4_K_M.gguf"


def test_hostile_names_are_shown_escaped() -> None:
    with pytest.raises(LlmrunError) as caught:
        chosen(["a\x1b[2J-Q4_0.gguf", "b\x1b[2J-Q4_0.gguf"], "Q4_0")
    assert "\x1b" not in caught.value.message


def test_grouping_keeps_names_apart() -> None:
    models = group_models(files(*SEL_01, *SPLIT))
    assert sorted(model.label for model in models) == ["Q3_K_M", "Q4_K_M", "Q4_K_S", "Q8_0", "Q8_0", "UD-Q4_K_XL"]
