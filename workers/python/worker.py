# Started by the server: python worker.py INTERFACE TARGET
# The package is loaded by its path, so that modules of the application take precedence over files in this directory.
import importlib.util
import os
import sys

folder = os.path.dirname(os.path.realpath(__file__))
if sys.path and os.path.realpath(sys.path[0]) == folder:
    del sys.path[0]
package = os.path.join(folder, "komainu")
spec = importlib.util.spec_from_file_location(
    "komainu", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
)
module = importlib.util.module_from_spec(spec)
sys.modules["komainu"] = module
spec.loader.exec_module(module)

from komainu.life import run  # noqa: E402

if __name__ == "__main__":
    run(*sys.argv[1:])
