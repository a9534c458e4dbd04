# SPDX-License-Identifier: Apache-2.0
"""What is shown to the server. Made by `auth` and `plugin`, sent by `session`."""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.kube.tls import Pair


class Proof(Struct, frozen=True, eq=False):
    """Headers for a request, and the certificate for its connection; the same object as long as it is the same."""

    headers: Mapping[str, str]
    pair: Pair | None = None


def bearer(token: str) -> Mapping[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}
