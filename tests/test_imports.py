"""Imports run one way, tier by tier, and starting the program loads nothing heavy."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "llmrun").rglob("*.py"))
}
# A unit may import the units of the tiers before its own, and itself.
TIERS = [
    {"errors", "paths", "report"},
    {"gguf", "machine"},
    {"models", "plan", "chat"},
    {"engine", "convert"},
    {"quant"},
    {"evals"},
    {"bench"},
    {"prepare"},
    {"cli"},
    {"__main__"},
]
POLICY = ["llmrun.engine.request", "llmrun.engine.scheduler", "llmrun.engine.prefix"]
HEAVY = ["llama_cpp", "numpy", "huggingface_hub", "jinja2"]


def absolute(node: ast.ImportFrom, module: str, path: Path) -> str:
    """The full name that `from X import ...` in `module` names, leading dots resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def imports(module: str, nodes: Iterable[ast.AST]) -> frozenset[str]:
    """What `nodes` import; `from a import b` counts as a.b where that is a module of llmrun."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module, MODULES[module])
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {source}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            found |= {part.value for part in node.args[:1] if isinstance(part, ast.Constant)}
    return frozenset(found)


def run_at_start(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and those under it that run when the module is imported: not what functions hold."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from run_at_start(child)


@cache
def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def all_imports(module: str) -> frozenset[str]:
    return imports(module, ast.walk(parse(module)))


@cache
def start_imports(module: str) -> frozenset[str]:
    """What importing `module` imports: its own statements outside functions, and its parent packages."""
    parents = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
    return imports(module, run_at_start(parse(module))) | parents


def loaded_by(module: str) -> set[str]:
    """All that importing `module` imports, through llmrun's own modules."""
    seen: set[str] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name in MODULES:
            waiting |= start_imports(name) - seen
    return seen


def unit(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(package: str, module: str) -> bool:
    return any(name.split(".")[0] == package for name in all_imports(module))


def tier(name: str) -> int:
    for number, units in enumerate(TIERS):
        if name in units:
            return number
    raise AssertionError(f"llmrun/{name} is in no tier: give it one in {Path(__file__).name}")


def test_imports_run_one_way() -> None:
    wrong = []
    for module in MODULES:
        own = unit(module)
        for name in all_imports(module):
            other = unit(name) if name.split(".")[0] == "llmrun" else ""
            if own and other and own != other and tier(other) >= tier(own):
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_policy_never_loads_the_library() -> None:
    for module in POLICY:
        assert module in MODULES
        loaded = loaded_by(module)
        assert "llmrun.engine.capi" not in loaded
        assert not [name for name in loaded if name.split(".")[0] == "llama_cpp"]


def test_one_module_imports_llama_cpp() -> None:
    assert [module for module in MODULES if imports_of("llama_cpp", module)] == ["llmrun.engine.capi"]


def test_sources_know_the_store_and_not_the_reverse() -> None:
    assert not [name for name in all_imports("llmrun.models.store") if name.startswith("llmrun.models.sources")]


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras if name != "dev")]
    declared = {normal(re.split(r"[<>=~!\[; ]", line, maxsplit=1)[0]) for group in groups for line in group}
    imported = {name.split(".")[0] for module in MODULES for name in all_imports(module)}
    sources = packages_distributions()
    for package in imported - {"llmrun", *sys.stdlib_module_names}:
        assert declared & {normal(name) for name in sources.get(package, [package])}, package


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("package", "places"),
    [("rich", ("llmrun.cli.output", "llmrun.cli.terminal")), ("typer", ("llmrun.cli",))],
)
def test_terminal_packages_stay_in_their_place(package: str, places: tuple[str, ...]) -> None:
    assert not [module for module in MODULES if imports_of(package, module) and not module.startswith(places)]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_start_imports_nothing_heavy(argument: str) -> None:
    program = f"""
import json, sys
sys.argv = ["llmrun", {argument!r}]
from llmrun.cli import main
try:
    status = main()
except SystemExit as end:
    status = end.code
print(json.dumps([status or 0, [name for name in {HEAVY!r} if name in sys.modules]]), file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60)
    assert run.stdout.strip()
    assert json.loads(run.stderr.splitlines()[-1]) == [0, []]
