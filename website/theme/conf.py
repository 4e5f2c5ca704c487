"""Sphinx's settings for the site; the builder copies this file beside the pages."""

project = "Faultline"
html_title = "Faultline"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch the pages, which a browser refuses among files
html_use_index = False
exclude_patterns = ["_extra", "_static"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
