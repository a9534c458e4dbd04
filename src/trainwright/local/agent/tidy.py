# SPDX-License-Identifier: Apache-2.0
"""Files of pods that are gone, where nobody keeps them: `stop` removes a pod's logs, `agent` what others have left."""

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

#: Of a UID, in the names of logs.
SHORT = 8


def forget(folder: Path, name: str, uid: str) -> None:
    """Remove the logs of one pod; others of its name may have some too."""
    logs = folder / "logs" / name
    for log in logs.glob(f"{uid[:SHORT]}-*"):
        log.unlink(missing_ok=True)
    with suppress(OSError):
        logs.rmdir()


def sweep(folder: Path, present: Collection[str]) -> None:
    """Remove what is left of pods that went while no agent was here."""
    for place in folder.glob("pods/*"):
        if place.name not in present:
            shutil.rmtree(place, ignore_errors=True)
    known = {uid[:SHORT] for uid in present}
    for log in folder.glob("logs/*/*"):
        if log.name.partition("-")[0] not in known:
            with suppress(OSError):  # something else has got there; it is not ours
                log.unlink()
    for logs in folder.glob("logs/*"):
        with suppress(OSError):
            logs.rmdir()
