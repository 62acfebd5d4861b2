"""The native module: for the limited API, so that one wheel serves every Python from 3.9 on, but free-threaded ones."""

import os
import pathlib
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

here = pathlib.Path(__file__).parent.resolve()
root = here.parent.parent
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def library():
    """The folder of libworkers.a."""
    given = os.environ.get("KOMAINU_LIBRARY")
    if given:
        return given
    subprocess.run(["cargo", "build", "--release", "--package", "komainu-workers"], cwd=root, check=True)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", root / "target"), "release")


class Build(build_ext):
    def build_extension(self, extension):
        # Imported only when needed: metadata must be available without a compiler.
        extension.extra_link_args.append(os.path.join(library(), "libworkers.a"))
        extension.extra_link_args += ["-lpthread", "-ldl", "-lm"]
        super().build_extension(extension)


class Package(build_py):
    def find_package_modules(self, package, folder):
        """All but this file."""
        return [module for module in super().find_package_modules(package, folder) if module[1] != "setup"]


native = Extension(
    "komainu_worker.komainu._native",
    sources=[f"src/{path.name}" for path in sorted((here / "src").glob("*.c"))],
    include_dirs=[str(path) for path in (here / "include", here.parent / "include") if path.is_dir()],
    extra_compile_args=["-O2", "-Wno-cast-function-type", "-fvisibility=hidden"],
    extra_link_args=["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-Wl,-s"],
    define_macros=[("KOMAINU_WHOLE_API", "1")] if free_threaded else [],
    py_limited_api=not free_threaded,
)
setup(
    packages=["komainu_worker", "komainu_worker.komainu"],
    package_dir={"komainu_worker": ".", "komainu_worker.komainu": "komainu"},
    ext_modules=[native],
    cmdclass={"build_ext": Build, "build_py": Package},
    # Not `build`, which is the name of a script here.
    options={"build": {"build_base": ".build"}}
    | ({} if free_threaded else {"bdist_wheel": {"py_limited_api": "cp39"}}),
)
