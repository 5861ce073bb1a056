"""What operations of the template language cost, put into a template's syntax tree before it is compiled.

Calls and arithmetic can be intercepted by a sandboxed environment. Loops, comparisons, slices, ``~``,
tuples and block assignments cannot, so each is wrapped in a filter that pays.
"""

import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes

from daemon.template_budget import Budget, TemplateBudgetExceeded

budget: contextvars.ContextVar[Budget] = contextvars.ContextVar("budget of the template that is rendered")

_WRITTEN = frozenset(
    {
        "capitalize",
        "center",
        "e",
        "escape",
        "format",
        "indent",
        "join",
        "lower",
        "pprint",
        "replace",
        "string",
        "striptags",
        "title",
        "tojson",
        "trim",
        "truncate",
        "upper",
        "wordcount",
        "wordwrap",
        "xmlattr",
        "sort",
        "unique",
        "min",
        "max",
        "groupby",
        "dictsort",
    }
)
"""Filters that write, compare or hash all of what they are given."""

_COMPARING = frozenset(
    {
        "eq",
        "equalto",
        "==",
        "ne",
        "!=",
        "lt",
        "lessthan",
        "<",
        "le",
        "<=",
        "gt",
        "greaterthan",
        ">",
        "ge",
        ">=",
        "in",
    }
)


def paying(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `function`, paid for. A lazy result is paid item by item."""
    n_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0

    def paid(*args: Any, **kwargs: Any) -> Any:
        purse = budget.get()
        values = args[n_hidden:]
        others = (*values[1:], *kwargs.values())
        purse.check_numbers(others)
        if name in _WRITTEN:
            purse.weigh([*values, *kwargs.values()])
        _check_special(purse, name, values, others)
        result = function(*args, **kwargs)
        return _steps(result, purse, 1) if isinstance(result, Iterator) else purse.made(result)

    if n_hidden:
        paid.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return paid


def paying_test(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """The test `name`, paid for if it compares; the others look at a type or a name."""
    return paying("sort", test) if name in _COMPARING else test


def _check_special(purse: Budget, name: str, values: tuple[Any, ...], others: tuple[Any, ...]) -> None:
    if name == "replace" and len(values) >= 3:
        purse.check_product(str(values[0]).count(str(values[1])), len(str(values[2])))
    elif name == "format":
        purse.check_format(values[0] if values else "", others)
    elif name == "join" and values and hasattr(values[0], "__len__"):
        purse.check_product(len(values[0]), sum(len(other) for other in others if isinstance(other, str)))
    elif name in ("indent", "tojson"):
        width = max((other for other in others if isinstance(other, int)), default=0)
        purse.check_product(width, purse.weigh(values[0]) if values else 0)
    elif name == "sum" and any(not isinstance(other, int | float | str) for other in others):
        raise TemplateBudgetExceeded("the chat template adds up lists, which takes too much work")


def check_method(purse: Budget, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a method of a built-in value is called. Other callables pay by themselves."""
    function = getattr(method, "__wrapped__", method)
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if not isinstance(owner, str | bytes | int | float | list | tuple | dict):
        return
    others = (*args, *kwargs.values())
    purse.check_numbers(others)
    if name in ("get", "items", "keys", "values"):
        return
    if name in ("format", "format_map"):
        purse.check_format(owner, others)
        return
    weight = purse.weigh([owner, *others])
    if name == "replace" and len(args) > 1 and isinstance(owner, str):
        purse.check_product(owner.count(str(args[0])), len(str(args[1])))
    elif name == "join" and isinstance(owner, str):
        purse.check_product(weight, len(owner))
    elif name == "expandtabs" and isinstance(owner, str):
        purse.check_product(owner.count("\t"), args[0] if args else 8)
    elif name == "translate":
        raise TemplateBudgetExceeded("the chat template uses str.translate, which is not allowed")


def _steps(iterable: Iterable[Any], purse: Budget, price: int) -> Iterator[Any]:
    for item in iterable:
        purse.spend(price)
        yield item


def _loop(iterable: Any, price: int) -> Any:
    """What a ``for`` runs over: a step costs what the body's constant text can add to the output."""
    purse = budget.get()
    if isinstance(iterable, list | tuple | dict | str | range):
        purse.spend(len(iterable) * price)
        return iterable
    return _steps(iterable, purse, price) if isinstance(iterable, Iterable) else iterable


def _made(value: Any) -> Any:
    return budget.get().made(value)


def weighed(value: Any) -> Any:
    """Before `value` is written out or compared."""
    purse = budget.get()
    if isinstance(value, str):
        purse.spend(1 + len(value) // 16)
    elif isinstance(value, list | tuple | dict | set):
        purse.weigh(value)
    return value


PRICE_FILTERS: dict[str, Callable[..., Any]] = {"_loop": _loop, "_made": _made, "_weighed": weighed}


def add_prices(tree: nodes.Template) -> None:
    """Rewrite the tree of a template in place."""
    _rewrite(tree)


def _rewrite(node: nodes.Node) -> nodes.Node:
    for field, value in list(node.iter_fields()):
        if isinstance(value, list):
            value[:] = [_rewrite(item) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewrite(value))
    if isinstance(node, nodes.For):
        constant = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = _filtered(node.iter, "_loop", nodes.Const(4 + constant // 4))
    elif isinstance(node, nodes.AssignBlock):
        # `filter` holds the filters of `{% set x | upper %}`; the innermost one gets the block's text
        node.filter = nodes.Filter(node.filter, "_made", [], [], None, None)
    elif isinstance(node, nodes.Compare):
        node.expr = _filtered(node.expr, "_weighed")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_weighed")
    elif isinstance(node, nodes.Concat):
        node.nodes = [_filtered(part, "_weighed") for part in node.nodes]
        return _filtered(node, "_made")
    elif (isinstance(node, nodes.Tuple) and node.ctx == "load") or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice) and node.ctx == "load"
    ):
        return _filtered(node, "_made")
    return node


def _filtered(node: Any, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
