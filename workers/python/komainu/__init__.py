"""The Python worker of Komainu: loads a WSGI or ASGI application and answers requests with it.

For applications:

    @komainu.on_load      # the application has been loaded, in the process that loaded it
    @komainu.before_fork  # in the process that forks workers, before each
    @komainu.after_fork   # in each worker, before its first request; also where it was not forked
    @komainu.on_exit      # in each worker, after its last request
    def hook(): ...

``komainu.Gone`` is raised where nobody waits for an answer any more. None of it is needed.
"""

__all__ = ["Gone", "after_fork", "before_fork", "on_exit", "on_load"]

hooks = {"on_load": [], "before_fork": [], "after_fork": [], "on_exit": []}


def _hook(name):
    def register(function):
        hooks[name].append(function)
        return function

    register.__name__ = name
    return register


on_load = _hook("on_load")
before_fork = _hook("before_fork")
after_fork = _hook("after_fork")
on_exit = _hook("on_exit")


def __getattr__(name):
    if name == "Gone":
        from komainu._native import Gone

        return Gone
    raise AttributeError(f"module 'komainu' has no attribute {name!r}")
