"""Whether values produced for one branch of a `oneOf` can be values of another one too."""

from llmrun.engine.schema.branch import Branch
from llmrun.engine.schema.document import Contradiction, Document, Paths, Way, refuse

MAX_DEPTH = 4


Known = dict[str, list[Branch | None]]
"""The branches of each node, read once."""


def keep_apart(document: Document, branch: Branch, known: Known) -> None:
    """Makes sure that the branch produces nothing that another branch of its `oneOf`s allows, if need be by
    requiring or leaving out properties. Raises GrammarError where it cannot be shown."""
    for place, others in branch.others:
        for other in others:
            if other not in known:
                known[other] = [_branch(document, way, other) for way in document.ways((other,))]
            for alternative in known[other]:
                if not _apart(branch, alternative, 0):
                    raise refuse(
                        place,
                        f"a value made for {branch.path} may be valid for {other} as well; use anyOf, "
                        "or a required property with a different const in each",
                    )


def _branch(document: Document, way: Way, path: str) -> Branch | None:
    try:
        return Branch(document, way, path)
    except Contradiction:
        return None


def _apart(produced: Branch, other: Branch | None, depth: int) -> bool:
    if other is None:
        return True
    common = produced.produced_types() & other.types
    if produced.values is not None:
        return not any(other.may_admit(value) for value in produced.values)
    if other.values is not None:
        return not any(produced.may_admit(value) for value in other.values)
    return all(_apart_by_type(produced, other, kind, depth) for kind in sorted(common))


def _apart_by_type(produced: Branch, other: Branch, kind: str, depth: int) -> bool:
    if kind in ("integer", "fraction"):
        return produced.interval().common(other.interval()).empty()
    if kind == "string":
        return _no_common_count(produced.bounds("minLength", "maxLength"), other.bounds("minLength", "maxLength"))
    if kind == "array":
        return _no_common_count(produced.bounds("minItems", "maxItems"), other.bounds("minItems", "maxItems"))
    return kind == "object" and _apart_objects(produced, other, depth)


def _no_common_count(left: tuple[int, int | None], right: tuple[int, int | None]) -> bool:
    return (left[1] is not None and left[1] < right[0]) or (right[1] is not None and right[1] < left[0])


def _apart_objects(produced: Branch, other: Branch, depth: int) -> bool:
    mine, theirs = produced.members(), other.members()
    makes = {name for name in mine.names if name not in mine.forbidden}
    if any(name not in makes and (mine.rest is None or name in mine.forbidden) for name in theirs.required):
        return True
    refused = {name for name in makes if name in theirs.forbidden or (theirs.closed and name not in theirs.names)}
    different = {
        name: None
        for name in mine.names
        if name in makes
        and name in theirs.names
        and _differ(produced.document, mine.names[name], theirs.names[name], depth)
    }
    if any(name in mine.required for name in [*refused, *different]):
        return True
    if depth == 0 and different:
        produced.required[next(iter(different))] = None
        return True
    optional = [name for name in theirs.required if name in makes and name not in mine.required]
    if depth == 0 and optional:
        produced.forbidden[optional[0]] = None
        return True
    return False


def _differ(document: Document, mine: Paths, theirs: Paths, depth: int) -> bool:
    """Whether no value made for the nodes `mine` is valid for `theirs`."""
    if depth >= MAX_DEPTH:
        return False
    lefts = [_branch(document, way, mine[0] if mine else "#") for way in document.ways(mine)]
    rights = [_branch(document, way, theirs[0] if theirs else "#") for way in document.ways(theirs)]
    return all(_apart(left, right, depth + 1) for left in lefts if left is not None for right in rights)
