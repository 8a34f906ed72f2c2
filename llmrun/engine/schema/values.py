"""From the nodes of a schema to the rules of a grammar: one rule for each set of nodes that hold for one value."""

import json
from dataclasses import dataclass, field
from typing import Any

from llmrun.engine.gbnf.writer import Rules
from llmrun.engine.schema.apart import Known, keep_apart
from llmrun.engine.schema.arrays import ArrayWay, array_way
from llmrun.engine.schema.branch import Branch
from llmrun.engine.schema.document import Contradiction, Document, Paths, contradiction, refuse
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.objects import ObjectPlan, write_objects
from llmrun.engine.schema.scalars import literals, number_rule, string_rule

MAX_VALUES = 5000
_ORDER = ("object", "array", "string", "fraction", "integer", "boolean", "null")


@dataclass
class _Value:
    """The ways to write one set of nodes: plans of objects, arrays, and expressions for scalars."""

    name: str
    paths: Paths
    plans: list[ObjectPlan] = field(default_factory=list)
    arrays: list[ArrayWay] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    listed: list[Any] = field(default_factory=list)

    def keep(self, ending: set[str]) -> None:
        """Leaves out the ways that need a value of a rule that is not among these."""
        self.plans = [plan for plan in self.plans if plan.needed <= ending]
        self.arrays = [way for way in self.arrays if way.needed <= ending]

    @property
    def used(self) -> set[str]:
        return {name for way in self.containers for name in way.used}

    @property
    def containers(self) -> list[ObjectPlan | ArrayWay]:
        return [*self.plans, *self.arrays]


class Values:
    """The rules for a document: first what each value needs, then, for those that come to an end, their text."""

    def __init__(self, document: Document, rules: Rules) -> None:
        self.document = document
        self.rules = rules
        self.values: dict[tuple[str, ...], _Value] = {}
        self.known: Known = {}
        self.ambiguous = False

    def rule(self, paths: Paths) -> str:
        """The name of the rule for values that satisfy all these nodes. Nodes that say the same share it."""
        paths = tuple(path for path in dict.fromkeys(paths) if not self.document.is_open(path))
        if not paths:
            return json_rule(self.rules, "value")
        key = tuple(json.dumps(self.document.raw(path)) for path in paths)
        if key not in self.values:
            if len(self.values) >= MAX_VALUES:
                raise refuse(paths[0], f"the schema has more than {MAX_VALUES} parts")
            hint = paths[0].rsplit("/", 1)[-1] if self.values else "root"
            self.values[key] = _Value(self.rules.reserve(hint), paths)
        return self.values[key].name

    def write(self) -> None:
        """The rules for the whole schema."""
        if self.rule(("#",)) != "root":
            self.rules.define(self.rules.reserve("root"), json_rule(self.rules, "value"))
        read = 0
        while read < len(self.values):
            for value in list(self.values.values())[read:]:
                self.read(value)
                read += 1
        ending = self.ending()
        values = {value.name: value for value in self.values.values()}
        todo = ["root"]
        for name in todo:
            if name in values:
                value = values.pop(name)
                value.keep(ending)
                self.define(value)
                todo += value.used

    def define(self, value: _Value) -> None:
        texts = [write_objects(value.plans, self.rules)] if value.plans else []
        texts += [*(way.text for way in value.arrays), *value.scalars]
        if not texts:
            raise contradiction(value.paths[0], "a value of this would have to contain another one, without end")
        self.rules.define(value.name, " | ".join(dict.fromkeys(texts)))
        self.ambiguous |= len(value.plans) > 1 or len(value.arrays) > 1

    def ending(self) -> set[str]:
        """The rules that some finite value satisfies."""
        waiting = list(self.values.values())
        found = self.rules.bodies.keys() - {value.name for value in waiting}
        growing = True
        while growing:
            new = {
                value.name
                for value in waiting
                if value.scalars or any(way.needed <= found for way in value.containers)
            }
            found |= new
            waiting = [value for value in waiting if value.name not in new]
            growing = bool(new)
        return found

    def read(self, value: _Value) -> None:
        """Finds all ways to satisfy the nodes, branches that contradict themselves left out."""
        failed: Contradiction | None = None
        for way in self.document.ways(value.paths):
            try:
                branch = Branch(self.document, way, value.paths[0])
                keep_apart(self.document, branch, self.known)
                if branch.values is not None:
                    value.listed += branch.values
                elif branch.is_open():
                    value.scalars.append(json_rule(self.rules, "value"))
                else:
                    self.read_branch(value, branch)
            except Contradiction as error:
                failed = failed or error
        if value.listed:
            value.scalars += literals(value.listed, self.rules, value.paths[0])
        if not (value.plans or value.arrays or value.scalars):
            raise failed or contradiction(value.paths[0], "false allows no value")

    def read_branch(self, value: _Value, branch: Branch) -> None:
        types = branch.produced_types()
        failed: list[Contradiction] = []
        kinds = [kind for kind in _ORDER if kind in types and not (kind == "integer" and "fraction" in types)]
        for kind in kinds:
            try:
                self.read_type(value, branch, kind)
            except Contradiction as error:
                failed.append(error)
        if len(failed) == len(kinds):
            raise failed[0]

    def read_type(self, value: _Value, branch: Branch, kind: str) -> None:
        if kind == "object":
            value.plans.append(ObjectPlan(branch, self.rules, self.rule))
        elif kind == "array":
            value.arrays.append(array_way(branch, self.rules, self.rule))
        elif kind == "string":
            value.scalars.append(string_rule(branch, self.rules))
        elif kind in ("integer", "fraction"):
            value.scalars.append(number_rule(branch, self.rules, whole=kind == "integer"))
        else:
            value.scalars.append(json_rule(self.rules, "boolean") if kind == "boolean" else '"null"')
