"""Sphinx configuration: Markdown pages (MyST) in the Furo theme, built by `make docs`."""

from importlib.metadata import version as installed_version

from docutils.nodes import Element, SkipNode
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

project = "imel"
author = "the imel developers"
copyright = f"2026, {author}"
version = release = installed_version("imel")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # so that pages can link to each other's sections as on a code host

default_role = "literal"  # docstrings put code into single backticks
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"imel {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"

_logger = logging.getLogger(__name__)


def _append_math(translator: HTML5Translator, node: Element, as_block: bool) -> None:
    try:
        translator.body.append(tex2mathml(node.astext(), as_block))
    except MathError as error:
        _logger.warning("formula: %s", error, location=node)
    raise SkipNode


def _inline(translator: HTML5Translator, node: Element) -> None:
    _append_math(translator, node, as_block=False)


def _block(translator: HTML5Translator, node: Element) -> None:
    _append_math(translator, node, as_block=True)


def _without_table(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Drop the settings from the docstring of IMeL: they have a page of their own."""
    del app, what, obj, options
    if name == "imel.IMeL":
        table = next(i for i, line in enumerate(lines) if "Settings of " in line)
        lines[table:] = ["See :doc:`settings`.", ""]


def setup(app: Sphinx) -> None:
    """Draw formulas as MathML, which needs no script, and leave the settings to their page."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _without_table)
