"""Random JSON Schemas of the supported subset, each with a maker of values that it allows.

A maker knows the schema only through what was drawn for it, not through llmrun; the values come with their
properties in the schema's order, as the grammar has them.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Make = Callable[[], Any]
NAMES = ("a", "b", "name", "names", "n", "ä b", 'q"t', "back\\slash", "x/y", "~", "", "tab\t", "日本")
TEXT = string.ascii_letters + " éß日本😀\"\\\n\t\x00\x1f/'{}[]:,"


@dataclass
class Drawn:
    """A schema and a maker of values it allows; `size` bounds the depth."""

    schema: Any
    make: Make


class Drawer:
    """Draws schemas; `bounded`: only those whose texts are short, for random models that must come to an end."""

    def __init__(self, random: Random, bounded: bool) -> None:
        self.random = random
        self.bounded = bounded
        self.definitions: dict[str, Any] = {}

    def document(self) -> Drawn:
        drawn = self.draw(3)
        if self.definitions:
            drawn.schema = {**drawn.schema, "$defs": self.definitions}
        return drawn

    def draw(self, depth: int) -> Drawn:
        kinds = ["string", "integer", "number", "enum", "const", "boolean", "null", "types", "pattern", "format"]
        if depth:
            kinds += ["object", "object", "object", "array", "array", "tuple", "anyOf", "oneOf", "allOf", "ref"]
        if not self.bounded:
            kinds += ["map", "recursive", "any"] if depth else ["any"]
        return getattr(self, "draw_" + self.random.choice(kinds).lower())(depth)

    def text(self, low: int, high: int) -> str:
        return "".join(self.random.choice(TEXT) for _ in range(self.random.randint(low, high)))

    def draw_string(self, _: int) -> Drawn:
        low = self.random.choice([0, 0, 1, 3])
        high = low + self.random.choice([0, 1, 5, 12])
        schema: dict[str, Any] = {"type": "string"}
        if low or self.random.random() < 0.3:
            schema["minLength"] = low
        if self.bounded or self.random.random() < 0.5:
            schema["maxLength"] = high
        return Drawn(schema, lambda: self.text(low, high))

    def draw_integer(self, _: int) -> Drawn:
        schema: dict[str, Any] = {"type": "integer"}
        low = self.random.choice([-(10**9), -1000, -57, -1, 0, 1, 9, 99, 100, 12345])
        high = low + self.random.choice([0, 1, 8, 90, 12345, 10**9])
        if self.random.random() < 0.8:
            schema |= self.random.choice([{"minimum": low}, {"exclusiveMinimum": low - 1}, {"minimum": low - 0.5}])
        if self.random.random() < 0.8:
            schema |= self.random.choice([{"maximum": high}, {"exclusiveMaximum": high + 1}])
        step = self.random.choice([1, 1, 1, 2, 5, 7, 10, 60])
        first = -(-low // step) * step
        if step > 1 and first <= high:
            schema["multipleOf"] = step
            return Drawn(schema, lambda: first + step * self.random.randint(0, (high - first) // step))
        return Drawn(schema, lambda: self.random.randint(low, high))

    def draw_number(self, _: int) -> Drawn:
        schema: dict[str, Any] = {"type": "number"}
        if self.random.random() < 0.3:
            return Drawn(schema, lambda: self.random.choice([0, -0.5, 12.25, 1e-7, 3.5e21, -12, 0.1]))
        low = self.random.choice([-1000, -2.5, -0.01, 0, 0.001, 0.5, 1, 9.99, 123.456])
        high = round(low + self.random.choice([0.25, 1, 10.5, 1000]), 6)
        schema |= self.random.choice([{"minimum": low}, {"exclusiveMinimum": low}])
        schema |= self.random.choice([{"maximum": high}, {"exclusiveMaximum": high}])
        if self.random.random() < 0.3:
            step = self.random.choice([0.5, 0.25, 1, 0.125])
            count = int((high - low) / step)
            inside = [v for k in range(count + 2) if low < (v := (low // step + k) * step) < high]
            if inside:
                whole = [int(v) if v == int(v) else v for v in inside]
                return Drawn(schema | {"multipleOf": step}, lambda: self.random.choice(whole))
        places = self.random.choice([4, 6])
        return Drawn(schema, lambda: round(low + (high - low) * self.random.uniform(0.01, 0.99), places))

    def draw_enum(self, _: int) -> Drawn:
        pool: list[Any] = [
            None,
            True,
            False,
            0,
            1,
            -5,
            2.5,
            "",
            "a",
            "ab",
            'q"',
            "é",
            [],
            [1, "x"],
            {},
            {"k": [None]},
        ]
        values = self.random.sample(pool, self.random.randint(1, 6))
        if self.random.random() < 0.2:
            values = [f"word{n}" for n in range(self.random.randint(20, 40))]
        schema: dict[str, Any] = {"enum": values}
        if all(isinstance(value, str) for value in values):
            schema["type"] = "string"
        return Drawn(schema, lambda: self.random.choice(values))

    def draw_const(self, _: int) -> Drawn:
        value = self.random.choice(["k", "日本", 7, -1.5, None, True, ["a", {"b": 1}]])
        return Drawn({"const": value}, lambda: value)

    def draw_boolean(self, _: int) -> Drawn:
        return Drawn({"type": "boolean"}, lambda: self.random.random() < 0.5)

    def draw_null(self, _: int) -> Drawn:
        return Drawn({"type": "null"}, lambda: None)

    def draw_types(self, depth: int) -> Drawn:
        one, two = self.draw_string(depth), self.draw_integer(depth)
        schema = {**one.schema, **two.schema, "type": ["string", "integer", "null"]}
        return Drawn(schema, lambda: self.random.choice([one.make, two.make, lambda: None])())

    def draw_pattern(self, _: int) -> Drawn:
        digits, letters = string.digits, string.ascii_lowercase
        pick = self.random.choice

        def some(chars: str, low: int, high: int) -> str:
            return "".join(pick(chars) for _ in range(self.random.randint(low, high)))

        pattern, make = pick([
            (r"^\d{3}$", lambda: some(digits, 3, 3)),
            (r"^[a-z]{2,5}(-[0-9]+)?$", lambda: some(letters, 2, 5) + pick(["", "-", "-"]) and some(letters, 2, 5)),
            (r"^(foo|ba[rz])+$", lambda: "".join(pick(["foo", "bar", "baz"]) for _ in range(3))),
            (r"^\w+@\w+\.[a-z]{2,3}$", lambda: f"{some(letters, 1, 4)}@{some(letters, 1, 4)}.{some(letters, 2, 3)}"),
            (r'^["\\\n]{1,4}$', lambda: some('"\\\n', 1, 4)),
            (r"^[^a-z\s]*$", lambda: some("ABC123-é日", 0, 6)),
            (r"^a|b$", lambda: pick(["a", "ax", "xb", "b"])),
            (r"abc", lambda: some(letters, 0, 3) + "abc" + some(letters, 0, 3)),
            (r"^\$\d+(?:\.\d\d)?$", lambda: f"${some(digits, 1, 4)}.{some(digits, 2, 2)}"),
            (r"^.{2,4}$", lambda: some("ab é\t", 2, 4)),
        ])  # fmt: skip
        schema: dict[str, Any] = {"type": "string", "pattern": pattern}
        if self.bounded or self.random.random() < 0.3:
            schema["maxLength"] = 24
        return Drawn(schema, make)

    def draw_format(self, _: int) -> Drawn:
        name, value = self.random.choice([
            ("date", "2024-02-29"), ("time", "23:59:59.5Z"), ("date-time", "1999-12-31T00:00:00+02:30"),
            ("uuid", "01234567-89ab-cdef-0123-456789abcdef"), ("ipv4", "255.10.0.9"), ("email", "a.b@ex-1.org"),
            ("ipv6", "0:0:0:0:0:0:0:1"), ("hostname", "a-1.example.com"), ("uri", "https://example.org/a/b"),
            ("duration", "P3DT4H"),
        ])  # fmt: skip
        return Drawn({"type": "string", "format": name}, lambda: value)

    def draw_object(self, depth: int) -> Drawn:
        names = self.random.sample(NAMES, self.random.randint(0, 4))
        parts = {name: self.draw(depth - 1) for name in names}
        required = [name for name in names if self.random.random() < 0.5]
        schema: dict[str, Any] = {"type": "object", "properties": {n: d.schema for n, d in parts.items()}}
        if required or self.random.random() < 0.5:
            schema["required"] = self.random.sample(required, len(required))
        extra: Drawn | None = None
        closed = self.random.random()
        if closed < 0.4:
            schema["additionalProperties"] = False
        elif closed < 0.6 and not self.bounded:
            extra = self.draw(0)
            schema["additionalProperties"] = extra.schema
        if names and self.random.random() < 0.3:
            low = self.random.randint(0, len(names))
            schema["minProperties"] = low
            high = max(low, len(required)) + self.random.randint(0, 2)
            schema["maxProperties"] = high
        else:
            low, high = 0, 99

        def make() -> Any:
            while True:
                found = {n: d.make() for n, d in parts.items() if n in required or self.random.random() < 0.5}
                if extra and self.random.random() < 0.5 and len(found) < high:
                    found["extra " + self.text(1, 3)] = extra.make()
                if low <= len(found) <= high:
                    return found

        return Drawn(schema, make)

    def draw_map(self, depth: int) -> Drawn:
        value = self.draw(depth - 1)
        schema = {"type": "object", "additionalProperties": value.schema}
        return Drawn(schema, lambda: {self.text(0, 5): value.make() for _ in range(self.random.randint(0, 2))})

    def draw_array(self, depth: int) -> Drawn:
        item = self.draw(depth - 1)
        low = self.random.choice([0, 0, 1, 2])
        high = low + self.random.choice([0, 1, 3])
        schema: dict[str, Any] = {"type": "array", "items": item.schema}
        if low:
            schema["minItems"] = low
        if self.bounded or self.random.random() < 0.5:
            schema["maxItems"] = high
        return Drawn(schema, lambda: [item.make() for _ in range(self.random.randint(low, high))])

    def draw_tuple(self, depth: int) -> Drawn:
        first = [self.draw(depth - 1) for _ in range(self.random.randint(1, 3))]
        rest = self.draw(depth - 1)
        low = self.random.randint(0, len(first))
        schema: dict[str, Any] = {"type": "array", "prefixItems": [d.schema for d in first], "minItems": low}
        most = len(first)
        kind = self.random.choice(["false", "schema", "absent"])
        if kind != "absent":
            schema["items"] = False if kind == "false" else rest.schema
        if kind == "schema":
            most += 2
            schema["maxItems"] = most

        def make() -> Any:
            count = self.random.randint(low, most)
            return [(first[i] if i < len(first) else rest).make() for i in range(count)]

        return Drawn(schema, make)

    def draw_anyof(self, depth: int) -> Drawn:
        if self.random.random() < 0.4:
            return self.draw_alike(depth)
        parts = [self.draw(depth - 1) for _ in range(self.random.randint(1, 3))]
        return Drawn({"anyOf": [d.schema for d in parts]}, lambda: self.random.choice(parts).make())

    def draw_alike(self, depth: int) -> Drawn:
        """Objects that begin with the same properties."""
        shared = {name: self.draw(depth - 1) for name in self.random.sample(NAMES, 3)}
        branches = []
        for _ in range(self.random.randint(2, 3)):
            names = [name for name in shared if self.random.random() < 0.8]
            own = {f"own{self.random.randrange(3)}": self.draw(0)} if self.random.random() < 0.6 else {}
            parts = {**{name: shared[name] for name in names}, **own}
            required = [name for name in parts if self.random.random() < 0.4]
            schema = {"type": "object", "properties": {n: d.schema for n, d in parts.items()}, "required": required}
            if self.random.random() < 0.3:
                schema["maxProperties"] = len(parts)
            branches.append((schema, parts, required))

        def make() -> Any:
            _, parts, required = self.random.choice(branches)
            return {n: d.make() for n, d in parts.items() if n in required or self.random.random() < 0.5}

        return Drawn({"anyOf": [schema for schema, _, _ in branches]}, make)

    def draw_oneof(self, depth: int) -> Drawn:
        if self.random.random() < 0.4:
            low, high = {"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 6}
            return Drawn(
                {"oneOf": [{"type": "boolean"}, low, high]}, lambda: self.random.choice([True, -3, 5, 6, 80])
            )
        parts = [self.draw(depth - 1) for _ in range(2)]
        branches = [
            {
                "type": "object",
                "properties": {"kind": {"const": f"k{index}"}, "value": part.schema},
                "required": self.random.choice([[], ["kind"], ["kind", "value"]]),
            }
            for index, part in enumerate(parts)
        ]

        def make() -> Any:
            index = self.random.randrange(2)
            return {"kind": f"k{index}", "value": parts[index].make()}

        return Drawn({"oneOf": branches}, make)

    def draw_allof(self, depth: int) -> Drawn:
        if self.random.random() < 0.4:
            text = self.draw_string(depth)
            high = text.schema.get("maxLength", 20)
            return Drawn({"allOf": [text.schema, {"maxLength": high + 3}, {"type": ["string", "null"]}]}, text.make)
        one, two = self.draw(depth - 1), self.draw(depth - 1)
        schema = {
            "allOf": [
                {"type": "object", "properties": {"p": one.schema}, "required": ["p"]},
                {"properties": {"q": two.schema}, "required": ["q"]},
            ],
            "properties": {"p": {}},
        }
        return Drawn(schema, lambda: {"p": one.make(), "q": two.make()})

    def draw_ref(self, depth: int) -> Drawn:
        target = self.draw(depth - 1)
        name = f"d/{len(self.definitions)}~"
        self.definitions[name] = target.schema
        schema: dict[str, Any] = {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1")}
        if isinstance(target.schema, dict) and "maxLength" in target.schema:
            schema["maxLength"] = target.schema["maxLength"] + 5
        return Drawn(schema, target.make)

    def draw_recursive(self, depth: int) -> Drawn:
        name = f"tree{len(self.definitions)}"
        self.definitions[name] = {}
        leaf = self.draw(0)
        here = {"$ref": f"#/$defs/{name}"}
        self.definitions[name] = {
            "type": "object",
            "properties": {
                "leaf": leaf.schema,
                "kids": {"type": "array", "items": here},
                "next": {"anyOf": [here, {"type": "null"}]},
            },
            "required": ["leaf"],
        }

        def make(room: int = 2) -> Any:
            found = {"leaf": leaf.make()}
            if room:
                found["kids"] = [make(room - 1) for _ in range(self.random.randint(0, 2))]
                found["next"] = self.random.choice([None, make(room - 1)])
            return found

        return Drawn(here, make)

    def draw_any(self, _: int) -> Drawn:
        values: list[Any] = [None, True, 5, -2.5, "x\n", [1, [2]], {"a": {"b": [None]}}]
        return Drawn(self.random.choice([{}, True, {"title": "free"}]), lambda: self.random.choice(values))
