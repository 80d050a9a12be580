"""How Sphinx makes the site. Read by Sphinx alone."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.site.docstrings import as_rst

project = "dlog"
author = "the authors of dlog"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "dlog"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
highlight_language = "text"
smartquotes_action = "q"  # "--json" is an option, and no dash
default_role = "py:obj"  # what a docstring names is linked if it is here, and else shown as code
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 90
add_module_names = False
# A type in a signature, as bytes, can have the name of attributes: those are not meant.
suppress_warnings = ["ref.python"]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _docstring)


def _docstring(*told: Any) -> None:
    lines: list[str] = told[-1]
    lines[:] = as_rst(lines)
