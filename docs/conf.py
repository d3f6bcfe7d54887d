"""Sphinx settings of the documentation; `make docs` builds it."""

import os
import re
import sys
from pathlib import Path

from docutils import nodes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "scripts"))

import inventories  # noqa: E402
import reference_pages  # noqa: E402

import segcal  # noqa: E402

project = "segcal"
author = "The segcal authors"
copyright = author
release = segcal.__version__

extensions = [
    "matplotlib.sphinxext.mathmpl",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["scripts", "results/*/tables"]

# Pages are Markdown; docstrings have Google sections, and names in single backticks become links.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes = False
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # `low` may be an attribute of several classes
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shape"]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

# Links to other projects work without a network: the few names that the docstrings use are listed
# in inventories.txt, from which the inventories are written.
intersphinx_mapping = inventories.mapping(HERE / "inventories.txt")

# Tutorials are stored without outputs and executed here; unchanged ones come from the cache.
# Small networks do not gain from threads, which would compete with the other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_cache_path = str(HERE.parent / "build" / "docs" / "jupyter_cache")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_ipywidgets_js = {}  # would be loaded from the network

mathmpl_fontsize = 15.0
mathmpl_srcset = ["2x"]

html_theme = "furo"
html_title = f"segcal {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def escape_formulas(app, what, name, obj, options, lines):
    """Docstrings write shapes as (B, K, *S) and absolute values as |x|, which RST would parse.

    Formulas become pictures: MathJax would be loaded from the network.
    """
    for number, line in enumerate(lines):
        if line.startswith(".. math::"):
            lines[number] = line.replace("math", "mathmpl", 1).replace(r"\mathcal{L}", "L")
        elif not line.lstrip().startswith((">>>", "...")):
            line = line.replace(":math:`", ":mathmpl:`")
            parts = re.split(r"(`[^`]*`)", line)  # code stays as it is
            parts[::2] = [re.sub(r"\*(?=S\b)|\|", r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def write_dashes(app, doctree):
    """A dash between a parameter and its description, where Sphinx writes two hyphens."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app):
    """Write the generated pages before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: reference_pages.write(HERE / "reference"))
    app.connect("doctree-read", write_dashes)
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)
