# SPDX-License-Identifier: Apache-2.0
"""Talking to an API server with nothing of ours in between: the standard library and kubectl.

What a test sees through this is what is there, whatever `trainwright.kube` believes. `ControlPlane` is one of these.
"""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_process import PlaneError

from patience import PATIENCE

Body = dict[str, Any]
_MERGE = "application/merge-patch+json"


class RefusedError(Exception):
    """The API server said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Client:
    """One API server, and the tokens of those who may talk to it."""

    def __init__(self, server: str, authority: Path, tokens: dict[str, str]) -> None:
        self.server = server
        self.authority = authority
        self.tokens = tokens

    def call(self, verb: str, path: str, body: Body | None = None, *, user: str = "admin") -> Body:
        """One request: `call("GET", "/api/v1/pods")`. PATCH is a merge patch. RefusedError has the code."""
        kind = _MERGE if verb == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": kind}
        try:
            return ask(self.server + path, body, verb=verb, headers=headers, tls=self._tls())
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(error.code, error.read().decode(errors="replace")) from None

    def find(self, path: str) -> Body | None:
        """What is there, or None."""
        try:
            return self.call("GET", path)
        except RefusedError as error:
            if error.code != 404:
                raise
            return None

    def answers(self, url: str) -> bool:
        """Somebody is there, and well."""
        try:
            with urllib.request.urlopen(url, timeout=5, context=self._tls()):  # noqa: S310 - a URL of our own
                return True
        except OSError:  # an HTTP error, too
            return False

    def _tls(self) -> ssl.SSLContext | None:
        """None until the server has made its certificate."""
        return ssl.create_default_context(cafile=str(self.authority)) if self.authority.exists() else None


def ask(
    url: str,
    body: Body | None = None,
    *,
    verb: str = "POST",
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Body:
    """One request with JSON both ways."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers or {}, method=verb)  # noqa: S310 - a URL of our own
    with urllib.request.urlopen(asked, timeout=PATIENCE, context=tls) as answer:  # noqa: S310 - a URL of our own
        found: Body = json.load(answer)
        return found


def run(words: list[str], given: str = "", *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command to its end. A failure raises, with what it said, unless `check` is off."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def until(so: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until something is so; what it returned."""
    deadline = time.monotonic() + patience
    while not (found := so()):
        if time.monotonic() > deadline:
            raise PlaneError(f"not in {patience:.0f} s: {what}")
        time.sleep(0.05)
    return found
