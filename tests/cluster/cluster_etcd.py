# SPDX-License-Identifier: Apache-2.0
"""What elastic PaddleJobs keep in a real etcd: the number of their workers, read and written over its JSON gateway."""

import base64

from cluster_client import ask


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Workers:
    """The number of workers of one job, as launchers of Paddle before 2.3 keep it in this etcd."""

    def __init__(self, etcd: str, namespace: str, job: str) -> None:
        self._etcd, self._key = etcd, _coded(f"/paddle/{namespace}-{job}/np")

    @property
    def number(self) -> str:
        """What is there, or nothing."""
        found = ask(f"{self._etcd}/v3/kv/range", {"key": self._key}).get("kvs") or [{"value": ""}]
        return base64.b64decode(found[0]["value"]).decode()

    def put(self, number: str, lease: str = "0") -> None:
        """As a launcher does when it starts."""
        ask(f"{self._etcd}/v3/kv/put", {"key": self._key, "value": _coded(number), "lease": lease})

    def leased(self, number: str) -> str:
        """The same, but only for a minute; which lease it is under."""
        lease = str(ask(f"{self._etcd}/v3/lease/grant", {"TTL": "60"})["ID"])
        self.put(number, lease)
        return lease

    @property
    def lease(self) -> str:
        """Under which lease it is."""
        return str(ask(f"{self._etcd}/v3/kv/range", {"key": self._key})["kvs"][0]["lease"])
