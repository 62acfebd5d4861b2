"""A Django project in one file, by WSGI and by ASGI."""

import asyncio
import os
import sys

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

settings.configure(
    DEBUG=False,
    SECRET_KEY="only for tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
    ],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    LOGGING={
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"err": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["err"]},
    },
)


def hello(request, name):
    return HttpResponse(f"{request.method} {name} {request.GET.get('a', '')} {request.META['SERVER_NAME']}")


def upload(request):
    file = request.FILES["file"]
    return JsonResponse({"name": file.name, "size": file.size, "note": request.POST["note"]})


def count(request):
    request.session["count"] = request.session.get("count", 0) + 1
    return HttpResponse(str(request.session["count"]))


def fail(request):
    raise ValueError("on purpose")


def stream(request):
    return StreamingHttpResponse((f"line {at}\n" for at in range(1000)), content_type="text/plain")


async def sleepy(request):
    await asyncio.sleep(0.01)
    return HttpResponse("awake")


async def astream(request):
    async def lines():
        for at in range(1000):
            yield f"line {at}\n"

    return StreamingHttpResponse(lines(), content_type="text/plain")


urlpatterns = [
    path("hello/<str:name>", hello),
    path("upload", upload),
    path("count", count),
    path("fail", fail),
    path("stream", stream),
    path("sleepy", sleepy),
    path("astream", astream),
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
