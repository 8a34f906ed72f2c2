"""Puts the checks of the sandbox's budget into a parsed template, where jinja has no hook at run time.

Each check is a filter whose name is no identifier, so that it takes no name from templates. Imports jinja2.
"""

from collections.abc import Iterable, Iterator

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from llmrun.chat.budget import LimitExceeded

MAX_NODES = 10_000  # the largest that models ship have 1,300
COST_PER_NODE = 8  # of a loop's body, each time round
TOLL, CONCAT, SLICE, COMPARED = "toll!", "~", "[:]", "=="


def metered(template: nodes.Template) -> nodes.Template:
    """`template`, changed in place. Raises LimitExceeded for one that would take long to compile."""
    if sum(1 for _ in walk([template])) > MAX_NODES:
        raise LimitExceeded(f"it has more than {MAX_NODES} parts")
    Metering().visit(template)
    return template


class Metering(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Each pass through a body that may run many times is paid for by its size."""
        self.generic_visit(node)
        toll = filtered(nodes.Const(body_cost(node.body)), TOLL)
        node.body.insert(0, nodes.ExprStmt(toll, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = visit_For

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = compared(node.expr)
        for operand in node.ops:
            operand.expr = compared(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        """A key of a dict is hashed."""
        self.generic_visit(node)
        node.key = compared(node.key)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return filtered(node.nodes[0], CONCAT, *node.nodes[1:])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return filtered(node.node, SLICE, *(end or nodes.Const(None) for end in ends))


def compared(expr: nodes.Expr) -> nodes.Expr:
    return expr if isinstance(expr, nodes.Const) else filtered(expr, COMPARED)


def filtered(expr: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(expr, name, list(args), [], None, None, lineno=expr.lineno)


def walk(roots: Iterable[nodes.Node], except_below: tuple[type, ...] = ()) -> Iterator[nodes.Node]:
    """`roots` and what is below them, in no order."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, except_below):
            stack.extend(node.iter_child_nodes())


def body_cost(body: Iterable[nodes.Node]) -> int:
    """Of one pass: its nodes and its text, without the bodies inside that pay for themselves."""
    parts = list(walk(body, except_below=(nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)))
    text = sum(len(node.data) for node in parts if isinstance(node, nodes.TemplateData))
    return COST_PER_NODE * len(parts) + text
