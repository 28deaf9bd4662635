"""Tags and filters for the templates of the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from stoker.dashboard import assets
from stoker.operations import wording as words
from stoker.operations.details import Fact
from stoker.operations.request_context import DASHBOARD
from stoker.operations.table import OPERATIONS
from stoker.operations.tracebacks import trace_parts
from stoker.values import text

register = template.Library()


def _known(say: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a filter that treats "" as None: templates give "" for a missing value."""

    def filtered(value: Any) -> str:
        return say(None if value == "" else value)

    return filtered


for _name, _say in (
    ("number", words.number),
    ("short", words.short_number),
    ("duration", words.duration),
    ("exactly", words.exactly),
    ("percent", words.percent),
):
    register.filter(_name, _known(_say))


register.filter("trace_parts", trace_parts)


@register.filter
def plural(count: int, names: str) -> str:
    """Format a count with its noun: ``{{ 2|plural:"job" }}``, ``{{ 2|plural:"entry,entries"
    }}``."""
    one, _, many = names.partition(",")
    return text.plural(count, one, many)


@register.filter
def short_task(path: str) -> SafeString:
    """Return a task's dotted path as HTML with a bold last part."""
    module, _, name = path.rpartition(".")
    if not module:
        return format_html("{}", name)
    return format_html('<span class="module">{}.<wbr></span><b>{}</b>', module, name)


@register.filter
def moment(at: datetime | None) -> SafeString:
    """Return how long ago a moment was, as HTML. The tooltip shows the exact time."""
    if at is None:
        return format_html("{}", words.UNKNOWN)
    aware = at if timezone.is_aware(at) else timezone.make_aware(at)  # for scripts
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        aware.isoformat(timespec="seconds"),
        words.exactly(at),
        words.since(at),
    )


@register.simple_tag(takes_context=True)
def at(context: dict[str, Any], page: str, *args: Any, **query: Any) -> str:
    """Return the URL of a page for the current backend: ``{% at "job" job.id %}``."""
    return str(context["visit"].at(page, *args, **query))


@register.inclusion_tag("stoker/dashboard/ask.html", takes_context=True)
def ask(
    context: dict[str, Any], name: str, target: Any, key: str = "", kind: str = "", back: str = ""
) -> dict[str, Any]:
    """Show the button of an operation: ``{% ask "pause-queue" "mail" %}``. With ``key``, the button
    opens a confirmation first. The next page is ``back``, or else this one."""
    operation, visit = OPERATIONS[name], context["visit"]
    return {
        "operation": operation,
        "question": operation.question.format(name=target) if key else "",
        "target": target,
        "key": key,
        "kind": "danger" if operation.is_grave else kind,
        "back": back or visit.request.get_full_path(),
        "is_allowed": visit.may(operation.permission),
        "visit": visit,
        "csrf_token": context.get("csrf_token"),
    }


@register.simple_tag(takes_context=True)
def fact_value(context: dict[str, Any], fact: Fact) -> SafeString:
    """Return the value of a fact as HTML, as a link if the fact names a page."""
    value = fact.value
    if isinstance(value, datetime):
        return format_html(
            '{} <span class="faint">({})</span>', moment(value), words.exactly(value)
        )
    if not fact.page:
        return format_html("{}", fact.text)
    by_name = {"dead-letters": "fingerprint", "queue": "name", "task": "name"}
    query = {by_name[fact.page]: value} if fact.page in by_name else {}
    address = context["visit"].at(fact.page, *([] if query else [value]), **query)
    return format_html('<a href="{}">{}</a>', address, fact.text)


@register.simple_tag(takes_context=True)
def asset(context: dict[str, Any], name: str) -> str:
    """Return the URL of a static file of the dashboard."""
    match = context["visit"].request.resolver_match
    plain = "".join(name)  # a path takes no string that is marked as safe
    return reverse(
        f"{DASHBOARD}:asset",
        args=[assets.version_of(plain), plain],
        current_app=match.namespace if match is not None else None,
    )


@register.filter
def code_marked(text: str) -> SafeString:
    """Return a text as HTML with the parts between backticks as code."""
    parts = enumerate(text.split("`"))
    return format_html_join("", "{}", ((_code(part) if n % 2 else part,) for n, part in parts))


def _code(text: str) -> SafeString:
    return format_html("<code>{}</code>", text)


@register.filter
def last_part(path: str) -> str:
    """Return the name of a class or task without its module."""
    return path.rpartition(".")[2]


@register.filter
def add_up(number: float, more: int) -> str:
    """Return the sum of two numbers in the format of SVG, whatever the language of the site."""
    return f"{number + more:.0f}"


@register.filter
def key(values: dict[str, Any], name: str) -> Any:
    """Return the value of a dict for a key that is held in a variable."""
    return values.get(name)


@register.filter
def split(text: str) -> list[str]:
    """Split a text into words."""
    return text.split()
