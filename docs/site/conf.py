# Sphinx's configuration; scripts/site copies it beside the staged pages and names the folders in the environment.
import os

project = "Thalweg"
copyright = "The Thalweg authors, Apache License 2.0"
version = release = os.environ["THALWEG_VERSION"]

extensions = ["myst_parser", "breathe", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["include"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

breathe_projects = {"thalweg": os.environ["THALWEG_DOXYGEN"]}
breathe_default_project = "thalweg"
breathe_show_include = False
breathe_domain_by_extension = {"h": "cpp"}
primary_domain = "cpp"
toc_object_entries_show_parents = "hide"
# Each header opens namespace thalweg again, and breathe declares it on each page.
suppress_warnings = ["duplicate_declaration.cpp"]
highlight_language = "text"

html_theme = "furo"
html_title = f"Thalweg {version}"
html_static_path = ["_static"]
html_css_files = ["thalweg.css"]
html_show_sphinx = False
html_copy_source = False
cpp_id_attributes = ["THALWEG_HIDDEN"]  # of a member that stays inside the library
