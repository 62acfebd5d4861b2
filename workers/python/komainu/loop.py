"""The end of an event loop."""

import asyncio


def end_loop(loop):
    """Ends the loop as asyncio.run() does: cancels the remaining tasks."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for task in left:
        if not task.cancelled() and task.exception() is not None:
            text = "unhandled exception in a task at the end of its event loop"
            loop.call_exception_handler({"message": text, "exception": task.exception(), "task": task})
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    asyncio.set_event_loop(None)
    loop.close()
