"""No module imports itself by way of others, whether inside a function or for type annotations alone."""

from graphlib import TopologicalSorter

import grimp


def test_the_package_has_no_import_circle():
    graph = grimp.build_graph("windtunnel", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # `windtunnel` names what it offers lazily, and those modules read its version.
    TopologicalSorter({module: imported - {"windtunnel"} for module, imported in imports.items()}).prepare()
