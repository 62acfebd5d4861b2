"""Finds the callable that the user names: a module or a file, and the name in it."""

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback

# The names to try if only a module or a file is given; the last two are called to create the application.
CALLABLES = ("application", "app", "handler")
FACTORIES = ("create_app", "make_app")


# Path prefixes of stack frames that do not belong to the application.
OWN = ("<frozen importlib", *(os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, importlib.__file__)))


def shown(error):
    """The traceback of an exception of the application, without frames of this package and of the import system."""
    text = traceback.TracebackException(type(error), error, error.__traceback__)
    seen, pending = set(), [text]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not frame.filename.startswith(OWN)]
        one.stack = traceback.StackSummary.from_list(frames)
        pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
    return "".join(text.format())


class NotFound(Exception):
    """There is no such application: a message to print without a traceback."""


def load(target):
    """The application of ``MODULE``, ``MODULE:NAME``, ``MODULE:FACTORY(ARGUMENTS)``, ``FILE.py`` or ``FILE.py:NAME``."""
    place, _, name = target.partition(":")
    if not place.endswith(".py") and ("/" in place or place.startswith(".")):
        file = f"{place}.py:{name}" if name else f"{place}.py"
        raise NotFound(f"{place!r} is not the name of a module: a file is written with its ending, {file!r}")
    module = load_file(place) if place.endswith(".py") else load_module(place)
    return attribute(module, name, target) if name else guess(module, place)


def load_file(path):
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}")
    sys.path.insert(0, folder)
    name = name[:-3]
    if name.isidentifier() and name not in sys.modules and found(name) == path:
        return importlib.import_module(name)
    # The file's name is already used (by a module, or by another file of that name), or cannot be imported.
    spec = importlib.util.spec_from_file_location(f"komainu_application_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def found(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return spec and spec.origin


def load_module(name):
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If the application itself imports a missing module, the traceback is needed.
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(f"there is no module {error.name}: looked in {', '.join(sys.path)}") from None
        raise


def attribute(module, text, target):
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise NotFound(f"{text!r} in {target!r} is neither a name nor a call") from None
    arguments, keywords = [], {}
    called = isinstance(tree, ast.Call)
    if called:
        try:
            arguments = [ast.literal_eval(argument) for argument in tree.args]
            keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}
        except ValueError:
            raise NotFound(f"the arguments in {target!r} are not all literals") from None
        tree = tree.func
    value = module
    for name in ast.unparse(tree).split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise NotFound(f"{module.__name__} has no {name!r}; it has {', '.join(names(module)) or 'nothing to call'}") from None
    if called:
        value = value(*arguments, **keywords)
    if not callable(value):
        raise NotFound(f"{target} is {value!r}, which cannot be called")
    return value


def prepare(app, interface):
    """The application and its interface, ``wsgi`` or ``asgi``; with ``auto`` it is detected."""
    seen = interface_of(app)
    for own, other, own_count, other_count in (("asgi", "wsgi", 3, 2), ("wsgi", "asgi", 2, 3)):
        if interface == own and seen == other and takes(app, other_count) and not takes(app, own_count):
            raise NotFound(f"this is an application for {other.upper()}, not for {own.upper()}: write `{other}` in place of `{own}`")
    if interface == "auto":
        interface = "wsgi" if seen == "wsgi" else "asgi"
    if interface == "asgi" and seen == "asgi2":
        app = SingleCall(app)
    return app, interface


class SingleCall:
    """Makes an ASGI 2 application, which is called twice, an ASGI 3 application."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        scope = {**scope, "asgi": {**scope["asgi"], "version": "2.0"}}
        await self.app(scope)(receive, send)


def several(first, others, interface):
    """Several applications in one; a request names its target unless it is the first."""
    for name, app in others.items():
        # If the interface of the first target was given, it applies to the others too.
        if interface_of(first) == interface != interface_of(app):
            raise NotFound(f"the target {name} is {interface_of(app).upper()}, and the application {interface.upper()}")
    if interface == "wsgi":

        def choose(environ, start_response):
            return others.get(environ.get("komainu.target"), first)(environ, start_response)

    else:

        def choose(scope, receive, send):
            return others.get(scope.get("komainu.target"), first)(scope, receive, send)

        choose.targets = [first, *others.values()]
    return choose


def names(module):
    return [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]


def guess(module, place):
    for name in CALLABLES:
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    for name in FACTORIES:
        if callable(getattr(module, name, None)):
            return getattr(module, name)()
    wanted = ", ".join(CALLABLES + FACTORIES)
    raise NotFound(f"{place} defines no application: none of {wanted} can be called in it (name another one: {place}:NAME)")


def takes(app, count):
    """Whether it can be called with so many arguments, as far as its signature says."""
    try:
        inspect.signature(app).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def interface_of(app):
    """``asgi``, ``asgi2`` or ``wsgi``, by the signature: of three arguments, of one (the scope), of two."""
    while isinstance(app, functools.partial):
        app = app.func
    call = app if inspect.isroutine(app) or inspect.isclass(app) else app.__call__
    if inspect.iscoroutinefunction(call):
        return "asgi"
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return "wsgi"
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) == 1:
        return "asgi" if any(p.kind is p.VAR_POSITIONAL for p in parameters) else "asgi2"
    return "asgi" if len(needed) == 3 else "wsgi"
