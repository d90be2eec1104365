"""Links that the pages need not write: names of gdt in code lead to the reference, and pages of
the gallery, which on a code host are scripts, lead to what the scripts show."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

import gdt
from docs.extensions.public_names import public_names

NAME = re.compile(r"((?:gdt|nn|optim)(?:\.\w+)+)(?:\(.*\))?")
GALLERY = re.compile(r"\]\(((?:\.\./)*)gallery/(\w+)\.py\)")
# A line that links to the n-th picture of a script, which is that picture on the site.
PICTURE = re.compile(r"^\[(.+)\]\(gallery/(\w+)\.py#(\d)\)$", re.M)


ON_THE_SITE = {
    "[Reference](tables.md)": "[Reference](generated/reference/index.md)",
    "[Gallery](gallery/dtensor_concepts.py)": "[Gallery](generated/gallery/index.rst)",
    "The packages in their own words": "[The packages in their own words]"
                                       "(generated/reference/packages.md)",
}  # fmt: skip
"""Links of pages that lead, on a code host, to the nearest file that is there."""


@cache
def names_of_objects() -> dict[int, list[str]]:
    """All names of public objects, by the identity of those; of each the reference shows one."""
    names: dict[int, list[str]] = {}
    for group in public_names().values():
        for name in group:
            if name.owner is None and name.kind != "data":
                names.setdefault(id(name.value), []).append(name.text)
    return names


def other_names(text: str) -> list[str]:
    """The names of the object that `text` names."""
    value: Any = gdt
    try:
        for part in text.split(".")[1:]:
            value = getattr(value, part)
    except AttributeError:
        return []
    return names_of_objects().get(id(value), [])


class NamesInCode(SphinxPostTransform):
    """Makes a link of every piece of code that is a name of gdt, or a call of it."""

    default_priority = 5

    def run(self, **options: Any) -> None:
        """Replace the nodes."""
        objects = self.env.domains.python_domain.objects
        for node in [*self.document.findall(nodes.literal)]:
            found = NAME.fullmatch(node.astext())
            in_table = (
                self.env.docname == "numpy" and node.astext().replace(".", "_").isidentifier()
            )
            if found is None and in_table:  # the table of NumPy's functions leaves out `gdt.`
                found = NAME.fullmatch(f"gdt.{node.astext()}")
            if found is None or isinstance(node.parent, nodes.reference):
                continue
            if any(isinstance(parent, nodes.title) for parent in _parents(node)):
                continue
            name = found[1] if found[1].startswith("gdt.") else f"gdt.{found[1]}"
            entry = next((objects[n] for n in (name, *other_names(name)) if n in objects), None)
            if entry is None:
                continue
            uri = self.app.builder.get_relative_uri(self.env.docname, entry.docname)
            link = nodes.reference(refuri=f"{uri}#{entry.node_id}", internal=True, reftitle=name)
            node.replace_self(link)
            link += node


def _parents(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def for_the_site(app: Sphinx, docname: str, content: list[str]) -> None:
    """Turn links to the gallery's scripts into links to the pages that are made of them, and to
    their pictures into the pictures, and leave out the empty lines with which doctests end."""
    text = content[0]
    for link, other in ON_THE_SITE.items():
        text = text.replace(link, other)
    text = PICTURE.sub(r"![\1](generated/gallery/images/sphx_glr_\2_00\3.png)", text)
    text = GALLERY.sub(r"](\1generated/gallery/\2.rst)", text)
    content[0] = re.sub(r"\n\n```$", "\n```", text, flags=re.M)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_post_transform(NamesInCode)
    app.connect("source-read", for_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
