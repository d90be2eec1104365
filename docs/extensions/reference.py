"""Writes the pages of the reference from docstrings and signatures, before Sphinx reads them.

Docstrings of gdt are Markdown, and are read as such. Ops are objects and no functions: autodoc
would show them as data, so the directives of Sphinx' domain of Python are written here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import gdt
from docs.extensions.groups import GROUPS, Group, grouped
from docs.extensions.public_names import Name
from docs.extensions.summaries import summary

FOLDER = Path(__file__).parent.parent / "generated/reference"
FENCE = ":" * 6


class Plain:
    """A text that `inspect` writes without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature(name: Name) -> str:
    """The parameters and their annotations, as they are written in the code."""
    if name.kind in ("data", "property") or name.signature is None:
        return ""
    found = inspect.signature(name.value)
    plain = lambda a: Plain(a) if isinstance(a, str) else a
    parameters = [p.replace(annotation=plain(p.annotation)) for p in found.parameters.values()]
    if name.kind == "method":
        parameters = parameters[1:]
    # a class is called: what it returns is an object of it
    result = inspect.Signature.empty if inspect.isclass(name.value) else found.return_annotation
    text = str(inspect.Signature(parameters, return_annotation=plain(result)))
    text = re.sub(r"<(?:function|class|built-in function) '?([\w.<>]+)'?[^>]*>", r"\1", text)
    return re.sub(r"<([\w. ]+?)(?: object)? at 0x\w+>", "...", text)


def markdown(docstring: str) -> str:
    """A docstring with its examples in fences."""
    lines: list[str] = []
    example = False
    for line in docstring.splitlines():
        starts = line.lstrip().startswith(">>> ")
        if starts and not example:
            indent = len(line) - len(line.lstrip())
            lines += ["", "```pycon"]
            example = True
        if example and not line.strip():
            lines.append("```")
            example = False
        lines.append(line[indent:] if example else line)
    return "\n".join([*lines, "```"] if example else lines)


def entry(name: Name, aliases: list[str]) -> list[str]:
    """The directive of one name, without the members of a class."""
    other = f"\n\nAlso: {', '.join(f'`{a}`' for a in aliases)}." if aliases else ""
    text = markdown(name.docstring) + other
    package = str(getattr(name.value, "__module__", "gdt")).split(".")[0]
    if package in ("numpy", "ml_dtypes"):
        text = f"`{package}.{name.short}` itself."
    elif name.kind == "data" and not name.docstring:
        text = f"The value is `{name.value!r}`."
    options = [":no-index-entry:"] if name.owner is not None else []
    kind = "method" if name.kind in ("classmethod", "staticmethod") else name.kind
    options += [f":{name.kind}:"] if name.kind in ("classmethod", "staticmethod") else []
    directive = f"{{py:{kind}}} {name.text}{signature(name)}"
    return [directive, *options, "", text, ""]


def page(group: Group, names: list[Name]) -> str:
    """A page: a table of its names with their first sentences, then all of them."""
    heads = [name for name in names if name.owner is None]
    canonical: dict[int, Name] = {}
    aliases: dict[str, list[str]] = {}
    for name in heads:  # the name that the function itself has comes first
        own = getattr(name.value, "__name__", None)
        known = canonical.get(id(name.value))
        if name.kind != "data" and (known is None or name.short == own):
            canonical[id(name.value)] = name
    for name in heads:
        main = canonical.get(id(name.value), name)
        if main is not name:
            aliases.setdefault(main.text, []).append(name.text)
    kept = [n for n in heads if canonical.get(id(n.value), n) is n]
    lines = [f"# {group.title}", "", group.text, ""]
    lines += ["| name | what it is |", "|---|---|"]
    lines += [f"| `{n.text}` | {summary(n.docstring) or '-'} |" for n in kept]
    lines.append("")
    by_owner: dict[Any, list[Name]] = {}
    for name in names:
        if name.owner is not None:
            by_owner.setdefault(name.owner, []).append(name)
    for name in kept:
        lines += [f"## {name.short}", "", f"{FENCE}{entry(name, aliases.get(name.text, []))[0]}"]
        lines += entry(name, aliases.get(name.text, []))[1:]
        for member in by_owner.get(name.value, []):
            lines += [f":::::{entry(member, [])[0]}", *entry(member, [])[1:], ":::::"]
        lines += [FENCE, ""]
    return "\n".join(lines)


def packages() -> str:
    """The page of the packages: their docstrings, which explain how they are made."""
    lines = ["# The packages, in their own words", "", "The docstring of each package of `gdt/`, "
             "in the order of the alphabet. [How gdt works](../../architecture.md) has them in "
             "their layers.", ""]  # fmt: skip
    for info in pkgutil.iter_modules(gdt.__path__):
        if info.ispkg:
            docstring = inspect.getdoc(importlib.import_module(f"gdt.{info.name}")) or ""
            lines += [f"## gdt.{info.name}", "", markdown(docstring), ""]
    return "\n".join(lines)


def write(app: Sphinx) -> None:
    """Write all pages, and the page that lists them; those that are as they were stay untouched."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = grouped()
    index = ["# Reference", "", "Everything public, from the code's docstrings. Every example runs "
             "in the tests.", "",
             "- [Layers, losses, metrics, optimizers, callbacks, schedules and initializers]"
             "(../../tables.md) in tables",
             "- [NumPy's functions](../../numpy.md): which gdt has, what each sends and holds", "",
             "```{toctree}", ":hidden:", "", "../../tables", "../../numpy", "```", ""]  # fmt: skip
    pages = {}
    for part, groups in GROUPS.items():
        index += [f"## {part}", ""]
        index += [f"- [{g.title}]({g.file}.md): {_plain(g.text)}" for g in groups]
        index += ["", "```{toctree}", ":hidden:", f":caption: {part}", ""]
        index += [g.file for g in groups] + ["```", ""]
        pages |= {f"{g.file}.md": page(g, names[g.file]) for g in groups}
    pages["index.md"] = "\n".join(index)
    pages["packages.md"] = packages()
    for file, text in pages.items():
        path = FOLDER / file
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _plain(text: str) -> str:
    """A text with its links written out."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
