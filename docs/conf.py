"""How Sphinx makes the site: `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import gdt  # noqa: E402

project = "gdt"
author = "the authors of gdt"
version = release = gdt.__version__
extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docs.extensions.reference",
    "docs.extensions.links",
]
exclude_patterns = ["gallery", "generated/gallery/README.*"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["config.cache"]
pygments_style = "tango"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = "gdt"
html_static_path = ["static"]
html_css_files = ["gdt.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["sphinx-version"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "plot_gallery": True,
    "abort_on_example_error": True,
    "within_subsection_order": "docs.extensions.gallery_order.GalleryOrder",
    "capture_repr": ("__repr__",),
    "nested_sections": False,
    "show_signature": False,
    "write_computation_times": False,
}
