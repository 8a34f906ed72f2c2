"""Grammar text from a user, checked before llama.cpp sees it: what it refuses, and what would crash or hang it."""

from random import Random

from llmrun.engine.gbnf.parser import Grammar, TokenElement, parse
from llmrun.engine.gbnf.walk import MAX_PATHS, TOKEN_CHARS, TooManyStacks, Walk
from llmrun.errors import GrammarError

MAX_BYTES = 4_000_000
MAX_CHAIN = 2000
"""Rules that begin with a rule that begins with a rule ...: llama.cpp follows them on the C stack."""
MAX_VISITS = 5_000_000
"""Its search for left recursion walks shared beginnings once per path to them."""
PROBE_CHARS = 64
PROBE_STACKS = 200_000


def check_grammar_text(text: str) -> None:
    """Raises GrammarError for a GBNF text that llama.cpp refuses, or that would crash, hang or constrain nothing."""
    if not text.strip():
        raise GrammarError("the grammar is empty", 'write at least one rule, as in  root ::= "yes" | "no"')
    if "\0" in text:
        raise GrammarError("the grammar holds a NUL character", "a grammar is plain text in UTF-8")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise GrammarError("the grammar is not UTF-8 text", "a grammar is plain text in UTF-8")
    if len(text) > MAX_BYTES:
        raise GrammarError(f"the grammar is longer than {MAX_BYTES} characters", "use a smaller one")
    grammar = parse(text)
    _check_beginnings(grammar)
    _check_growth(grammar)
    if is_ambiguous(grammar):
        raise _ambiguous("the same text can be read in too many ways")


def token_names(text: str) -> set[str]:
    """What a checked grammar calls whole tokens: `<text>`, or `<[id]>`."""
    rules = parse(text).rules if "<" in text else []
    elements = (element for rule in rules for sequence in rule for element in sequence)
    return {element.text.removeprefix("!") for element in elements if isinstance(element, TokenElement)}


def _beginnings(grammar: Grammar, may_be_empty: list[bool]) -> list[list[tuple[int, bool]]]:
    """For each rule the rules it can begin with, and whether something is left to match after that one."""
    edges: list[list[tuple[int, bool]]] = []
    for rule in grammar.rules:
        found = []
        for sequence in rule:
            for position, element in enumerate(sequence):
                if not isinstance(element, int):
                    break
                found.append((element, position + 1 < len(sequence)))
                if not may_be_empty[element]:
                    break
        edges.append(found)
    return edges


def _by_need(edges: list[list[tuple[int, bool]]]) -> list[int]:
    """Rules in an order where each follows all rules it can begin with; rules on or above a cycle are missing."""
    users: list[list[int]] = [[] for _ in edges]
    waiting = [len(found) for found in edges]
    for rule, found in enumerate(edges):
        for used, _ in found:
            users[used].append(rule)
    order = [rule for rule, count in enumerate(waiting) if count == 0]
    for rule in order:
        for user in users[rule]:
            waiting[user] -= 1
            if waiting[user] == 0:
                order.append(user)
    return order


def _check_beginnings(grammar: Grammar) -> None:
    """llama.cpp's own test for left recursion, which is recursive and takes a rule for empty only if it says so."""
    edges = _beginnings(grammar, [() in rule for rule in grammar.rules])
    order = _by_need(edges)
    if len(order) < len(edges):
        ordered = set(order)
        raise _left_recursion(grammar, next(rule for rule in range(len(edges)) if rule not in ordered))
    depth = [1] * len(edges)
    visits = [1] * len(edges)
    for rule in order:
        for used, _ in edges[rule]:
            depth[rule] = max(depth[rule], depth[used] + 1)
            visits[rule] += visits[used]
        if depth[rule] > MAX_CHAIN:
            raise GrammarError(
                f"rule '{grammar.names[rule]}' begins with a chain of more than {MAX_CHAIN} rules",
                "let rules begin with text, or refer to fewer others",
            )
    visited: set[int] = set()
    total = 0
    for rule in range(len(edges)):
        if rule not in visited:
            total += visits[rule]
            visited |= _reached(edges, rule, visited)
    if total > MAX_VISITS:
        raise _ambiguous("its rules can begin in too many ways")


def _check_growth(grammar: Grammar) -> None:
    """Left recursion through rules that can match nothing, which llama.cpp does not see and never ends in."""
    edges = _beginnings(grammar, _nullable(grammar))
    cyclic = set(range(len(edges))) - set(_by_need(edges))
    for rule in sorted(cyclic):
        for used, more in edges[rule]:
            if more and used in cyclic and rule in _reached(edges, used, set()):
                raise _left_recursion(grammar, rule)


def _nullable(grammar: Grammar) -> list[bool]:
    """Which rules can match nothing at all."""
    empty = [False] * len(grammar.rules)
    users: dict[int, list[int]] = {}
    for number, rule in enumerate(grammar.rules):
        for used in {e for sequence in rule for e in sequence if isinstance(e, int)}:
            users.setdefault(used, []).append(number)
    todo = list(range(len(grammar.rules)))
    while todo:
        number = todo.pop()
        rule = grammar.rules[number]
        if not empty[number] and any(all(isinstance(e, int) and empty[e] for e in s) for s in rule):
            empty[number] = True
            todo += users.get(number, [])
    return empty


def _reached(edges: list[list[tuple[int, bool]]], start: int, known: set[int]) -> set[int]:
    """The rules that `start` can begin with, itself included, without those behind `known` ones."""
    todo, seen = [start], {start}
    while todo:
        for used, _ in edges[todo.pop()]:
            if used not in seen and used not in known:
                seen.add(used)
                todo.append(used)
    return seen


def is_ambiguous(grammar: Grammar) -> bool:
    """Whether it takes too many stacks: walks where they are many, and at random, as long as that is cheap."""
    try:
        walk = Walk(grammar)
        _probe(walk, None, 2 * PROBE_CHARS)
        for seed in (1, 2):
            _probe(walk, Random(seed), PROBE_CHARS)
    except TooManyStacks:
        return True
    return False


def _probe(walk: Walk, random: Random | None, chars: int) -> None:
    stacks = walk.start
    for count in range(1, chars):
        points = walk.tops(stacks)
        if not points or walk.looked > PROBE_STACKS:
            break
        stacks = walk.advance(stacks, random.choice(points)) if random else walk.heaviest(stacks, points[:16])
        if sum(stacks.values()) > MAX_PATHS:
            raise TooManyStacks
        if count % TOKEN_CHARS == 0:
            stacks = dict.fromkeys(stacks, 1)


def _left_recursion(grammar: Grammar, rule: int) -> GrammarError:
    name = grammar.names[rule].split("_")[0]
    return GrammarError(
        f"rule '{name}' is left recursive: it can begin with itself",
        "put the recursion at the end, or write it as a repetition",
    )


def _ambiguous(reason: str) -> GrammarError:
    return GrammarError(
        f"the grammar is too ambiguous to sample with: {reason}",
        "write alternatives that differ in their first characters; avoid (x?){100} and (x*)*",
    )
