"""The sandbox in which chat templates run: jinja2 as Hugging Face's tools set it up, with bounded work."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from daemon.template_budget import Budget
from daemon.template_prices import (
    PRICE_FILTERS,
    add_prices,
    budget,
    check_method,
    paying,
    paying_test,
    weighed,
)

MAX_SOURCE = 2**20
_COMPILE_SECONDS = 10.0

_FILTERS = (
    "abs",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
    "wordwrap",
    "xmlattr",
)


class TemplateRefusal(TemplateError):
    """The template itself refused the conversation, by ``raise_exception``."""


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates render only under a budget, see `render`."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})
    macro_price = 0

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        purse = budget.get()
        check_method(purse, __obj, args, kwargs)
        if isinstance(__obj, Macro):
            purse.spend(__self.macro_price)
        return purse.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        purse = budget.get()
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple | bytes):
                    purse.check_product(count, len(value))
        elif operator == "**":
            purse.check_power(left, right)
        elif operator == "%" and isinstance(left, str | bytes):
            purse.check_format(left, right if isinstance(right, tuple) else (right,))
        return purse.made(super().call_binop(context, operator, left, right))


class _Generation(Extension):
    """Hugging Face's ``{% generation %}`` block: it marks text for training and renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML escaping, unlike jinja2's own: the model saw plain JSON in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateRefusal(str(message)[:1000])


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def make_environment() -> BudgetedEnvironment:
    """A fresh sandbox: no loader, no globals of Python, no filters beyond those that chat templates use."""
    environment = BudgetedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        finalize=weighed,
        cache_size=0,
    )
    filters: dict[str, Any] = {name: environment.filters[name] for name in _FILTERS}
    filters["tojson"] = _tojson
    environment.filters = {name: paying(name, function) for name, function in filters.items()} | PRICE_FILTERS
    tests: dict[str, Any] = environment.tests
    environment.tests = {name: paying_test(name, test) for name, test in tests.items()}
    allowed = {name: environment.globals[name] for name in ("range", "dict", "namespace", "joiner", "cycler")}
    environment.globals.clear()
    environment.globals.update(allowed, raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def compile_template(environment: BudgetedEnvironment, source: str) -> Template:
    """Parse and compile with prices built in. Raises TemplateError, also for what Python cannot compile."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"longer than {MAX_SOURCE} characters")
    environment.macro_price = 16 + len(source) // 4
    token = budget.set(Budget(len(source), _COMPILE_SECONDS))
    try:
        tree = environment.parse(source)
        add_prices(tree)
        code = environment.compile(tree)
        return environment.template_class.from_code(environment, code, environment.make_globals(None))
    except TemplateError:
        raise
    except (RecursionError, SyntaxError, ValueError, MemoryError, OverflowError) as error:
        raise TemplateError(f"it cannot be compiled: {error}") from None
    finally:
        budget.reset(token)


def render(template: Template, variables: Mapping[str, Any], purse: Budget) -> str:
    """Render under a budget. Raises TemplateError, and whatever a wrong template makes Python raise."""
    token = budget.set(purse)
    try:
        pieces = []
        for piece in template.generate(variables):
            purse.spend(1 + len(piece) // 4)
            pieces.append(piece)
        return str(purse.made("".join(pieces)))
    finally:
        budget.reset(token)
