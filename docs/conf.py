"""The site of these pages: `make site` writes it to build/site, warnings are errors."""

from __future__ import annotations

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[(?P<label>[^\]]*)\]\((?P<path>[^)#\s:]+)(?:#[^)\s]*)?\)")

project = "Frustum"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Frustum"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4


def name_what_is_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file or folder that is no page of the site becomes its name in the repository."""
    here = Path(app.env.doc2path(page)).parent

    def text(link: re.Match[str]) -> str:
        path = (here / link["path"]).resolve()
        inside = path.is_file() and path.is_relative_to(app.srcdir)
        return link[0] if inside or not path.exists() else f"{link['label']} (`{path.relative_to(ROOT)}`)"

    source[0] = LINK.sub(text, source[0])


def setup(app: Sphinx) -> None:
    app.add_lexer("mlir", TextLexer)
    app.connect("source-read", name_what_is_outside)
