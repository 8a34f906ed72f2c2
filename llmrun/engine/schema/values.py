"""From the nodes of a schema to the rules of a grammar: one rule for each set of nodes that hold for one value."""

from typing import Any

from llmrun.engine.gbnf.writer import Rules
from llmrun.engine.schema.apart import keep_apart
from llmrun.engine.schema.branch import Branch
from llmrun.engine.schema.containers import Way, array_way, object_way
from llmrun.engine.schema.document import Contradiction, Document, Paths, contradiction, refuse
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.scalars import literals, number_rule, string_rule

MAX_VALUES = 5000
_ORDER = ("object", "array", "string", "fraction", "integer", "boolean", "null")


class Values:
    """The rules made so far, and the sets of nodes that still need theirs."""

    def __init__(self, document: Document, rules: Rules) -> None:
        self.document = document
        self.rules = rules
        self.names: dict[Paths, str] = {}

    def rule(self, paths: Paths) -> str:
        """The name of the rule for values that satisfy all these nodes."""
        paths = tuple(path for path in dict.fromkeys(paths) if not self.document.is_open(path))
        if not paths:
            return json_rule(self.rules, "value")
        if paths not in self.names:
            if len(self.names) >= MAX_VALUES:
                raise refuse(paths[0], f"the schema has more than {MAX_VALUES} parts")
            self.names[paths] = self.rules.reserve(paths[0].rsplit("/", 1)[-1] if self.names else "root")
        return self.names[paths]

    def write(self) -> None:
        """The rules for the whole schema."""
        self.names[("#",)] = self.rules.reserve("root")
        written: dict[Paths, list[Way]] = {}
        while len(written) < len(self.names):
            for paths in [paths for paths in self.names if paths not in written]:
                written[paths] = self.ways(paths)
        ending = self.ending(written)
        for paths, ways in written.items():
            kept = [text for text, needed in ways if needed <= ending]
            if not kept:
                raise contradiction(paths[0], "a value of this would have to contain another one, without end")
            self.rules.define(self.names[paths], " | ".join(dict.fromkeys(kept)))

    def ending(self, written: dict[Paths, list[Way]]) -> set[str]:
        """The rules that some finite value satisfies."""
        found = {name for name in self.rules.bodies if name not in self.names.values()}
        growing = True
        while growing:
            new = {
                self.names[paths]
                for paths, ways in written.items()
                if self.names[paths] not in found and any(needed <= found for _, needed in ways)
            }
            found |= new
            growing = bool(new)
        return found

    def ways(self, paths: Paths) -> list[Way]:
        """Expressions for all values that satisfy the nodes, branches that contradict themselves left out."""
        found: list[Way] = []
        listed: list[Any] = []
        failed: Contradiction | None = None
        for way in self.document.ways(paths):
            try:
                branch = Branch(self.document, way, paths[0])
                keep_apart(self.document, branch)
                if branch.values is not None:
                    listed += branch.values
                else:
                    found += self.branch_ways(branch)
            except Contradiction as error:
                failed = failed or error
        if listed:
            found += [(text, frozenset()) for text in literals(listed, self.rules, paths[0])]
        if not found:
            raise failed or contradiction(paths[0], "false allows no value")
        return found

    def branch_ways(self, branch: Branch) -> list[Way]:
        if branch.is_open():
            return [(json_rule(self.rules, "value"), frozenset())]
        found: list[Way] = []
        failed: Contradiction | None = None
        types = branch.produced_types()
        for kind in _ORDER:
            if kind not in types or (kind == "integer" and "fraction" in types):
                continue
            try:
                found.append(self.typed_way(branch, kind))
            except Contradiction as error:
                failed = failed or error
        if not found:
            assert failed
            raise failed
        return found

    def typed_way(self, branch: Branch, kind: str) -> Way:
        if kind == "object":
            return object_way(branch, self.rules, self.rule)
        if kind == "array":
            return array_way(branch, self.rules, self.rule)
        if kind == "string":
            return string_rule(branch, self.rules), frozenset()
        if kind in ("integer", "fraction"):
            return number_rule(branch, self.rules, whole=kind == "integer"), frozenset()
        return json_rule(self.rules, "boolean") if kind == "boolean" else '"null"', frozenset()
