"""Sphinx configuration: Markdown pages (MyST) in the Furo theme, built by `make docs`."""

from importlib.metadata import version as installed_version

project = "imel"
author = "the imel developers"
copyright = f"2026, {author}"
version = release = installed_version("imel")

extensions = ["myst_parser", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2  # so that pages can link to each other's sections as on a code host

html_theme = "furo"
html_title = f"imel {release}"
html_copy_source = False
