"""Chat templates: makers' templates render, and hostile ones neither hang, nor grow, nor escape."""

import time
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from daemon.errors import ApiError
from daemon.template_budget import Budget, TemplateBudgetExceeded
from daemon.template_environment import TemplateRefusal, compile_template, make_environment, render
from daemon.templates import CHATML, ChatTemplate
from tests.shared_data import SHARED, shared

TEMPLATES = sorted(path.name for path in (SHARED / "templates").glob("*.jinja"))

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2+2?"}
ANSWER = {"role": "assistant", "content": "Four."}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "get_time", "arguments": {"zone": "UTC"}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_time", "content": "12:00"}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "tool": [USER, CALL, RESULT],
}


def rendered(source: str, **variables: Any) -> str:
    return render(compile_template(make_environment(), source), variables, Budget(0, 10))


@pytest.mark.parametrize("name", TEMPLATES or ["none"])
def test_a_makers_template_renders_conversations_or_refuses_them_itself(name: str) -> None:
    source = shared(f"templates/{name}").read_text(encoding="utf-8")
    template = ChatTemplate(source, "<s>", "</s>")
    n_rendered = 0
    for messages in CONVERSATIONS.values():
        for variables in ({}, {"tools": [TOOL]}):
            for generate in (True, False):
                try:
                    text = template.render(messages, add_generation_prompt=generate, variables=variables)
                except ApiError as error:
                    assert error.code == 400
                    continue
                n_rendered += 1
                assert "2+2" in text
    assert n_rendered >= 4


def test_the_generation_prompt_is_what_chatml_ends_with() -> None:
    template = ChatTemplate(CHATML)
    text = template.render([USER], add_generation_prompt=True, variables={})
    assert text == "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Qwen-Qwen3-0.6B.jinja",
            {"supports_system_role": True, "supports_tools": True, "supports_tool_calls": True},
        ),
        ("google-gemma-2-2b-it.jinja", {"supports_system_role": False, "supports_tools": False}),
        ("meta-llama-Llama-3.1-8B-Instruct.jinja", {"supports_parallel_tool_calls": False}),
        ("openai-gpt-oss-120b.jinja", {"supports_reasoning_effort": True}),
    ],
)
def test_what_a_template_can_express_is_found_by_rendering(name: str, expected: dict[str, bool]) -> None:
    caps = ChatTemplate(shared(f"templates/{name}").read_text(encoding="utf-8")).caps
    assert {field: getattr(caps, field) for field in expected} == expected


def test_raise_exception_becomes_an_error_with_the_templates_words() -> None:
    template = ChatTemplate("{{ raise_exception('only users, please') }}")
    with pytest.raises(ApiError, match="only users, please") as caught:
        template.render([USER], add_generation_prompt=True, variables={})
    assert caught.value.code == 400


def test_json_is_written_as_models_saw_it_in_training() -> None:
    assert rendered("{{ x | tojson }}", x={"a": "<é>", "b": [1, None]}) == '{"a": "<é>", "b": [1, null]}'
    assert rendered("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'
    assert rendered("{{ x | tojson(separators=(',', ':')) }}", x={"a": 1}) == '{"a":1}'


def test_the_language_has_what_templates_use() -> None:
    assert (
        rendered("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}")
        == "13"
    )
    assert rendered("{% generation %}a{% endgeneration %}b") == "ab"
    assert rendered("{% set n = namespace(i=1) %}{% set n.i = n.i + 1 %}{{ n.i }}") == "2"
    assert rendered("{% set y %}a{{ 1 }}{% endset %}{{ y | upper }}") == "A1"
    assert rendered("{% for x in [1, 2] %}{{ loop.last }}{{ loop.length }}{% endfor %}") == "False2True2"
    assert rendered("{{ 'a,b'.split(',')[-1] ~ 'c' }}") == "bc"
    assert rendered("{{ [1, 2, 3][1:] | join('-') }}") == "2-3"
    assert len(rendered("{{ strftime_now('%Y') }}")) == 4


GROWING = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "repetition": "{{ 'a' * 1000000000 }}",
    "doubling by ~": "{% set n = namespace(x='aa') %}"
    "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='aa') %}"
    "{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by set": "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set y %}{{ n.x }}{{ n.x }}"
    "{% endset %}{% set n.x = y %}{% endfor %}",
    "self-containing list": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
    "{% endfor %}{{ n.x }}",
    "comparing": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
    "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "hashing": "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
    "{{ {n.x: 1} }}",
    "test": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
    "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x is eq n.y }}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "filter width": "{{ 'x' | center(1000000000) }}",
    "method width": "{{ 'x'.ljust(1000000000) }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "star format": "{{ '%*d' % (1000000000, 1) }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "replace": "{% set b = 'a' * 100000 %}{{ b.replace('a', b) }}",
    "replace filter": "{% set b = 'a' * 100000 %}{{ b | replace('a', b) }}",
    "join": "{% set b = 'a' * 100000 %}{{ b.join(range(50000) | map('string') | list) }}",
    "slices": "{% set b = 'a' * 4000000 %}{% set n = namespace(l=[]) %}{% for i in range(100000) %}"
    "{% set n.l = n.l + [b[1:]] %}{% endfor %}",
    "summing lists": "{{ ([[1, 2]] * 50000) | sum(start=[]) }}",
    "bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "time format": "{{ strftime_now('%c' * 1000000) }}",
    "constant text": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
}


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING.keys())
def test_a_template_cannot_take_time_or_memory_without_bound(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(TemplateBudgetExceeded):
        render(compile_template(make_environment(), source), {}, Budget(0, 1.5))
    assert time.thread_time() - start < 10


ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ lipsum.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1).x.y }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=2) }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ raise_exception.__globals__.sys }}",
    "{{ (messages|map(attribute='__class__')|first).mro() }}",
)


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises((TemplateError, TypeError, AttributeError)):
        rendered(source, messages=[{"a": 1}])


BROKEN = (
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{% for x in [1] %}" * 60 + "{% endfor %}" * 60,
    "{% for %}",
    "{{ x | no_such_filter }}",
    "x" * (2**20 + 1),
)


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_a_template_that_cannot_be_compiled_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(make_environment(), source)


def test_endless_recursion_ends() -> None:
    with pytest.raises((RecursionError, TemplateError)):
        rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


def test_a_long_conversation_fits_the_budget() -> None:
    messages = [
        {"role": role, "content": "word " * 2000} for _ in range(200) for role in ("user", "assistant")
    ]
    text = ChatTemplate(CHATML).render(messages, add_generation_prompt=True, variables={})
    assert len(text) > 4_000_000


def test_a_refusal_is_told_from_a_fault() -> None:
    with pytest.raises(TemplateRefusal):
        rendered("{{ raise_exception('no') }}")
