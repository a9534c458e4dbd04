# SPDX-License-Identifier: Apache-2.0
"""Node agents as processes of their own, for `--nodes N`. `fleet` makes it; each process runs `agent.main`.

In the sandbox they share one network, kept by a process of its own, so that no node's death takes it along.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import trainwright
from trainwright.errors import ApiError, EngineError
from trainwright.local.agent.settings import Settings as Node
from trainwright.local.liveness import node_lost
from trainwright.local.settings import Settings
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock, Cluster
from trainwright.runtime.resources import NODES

_PATIENCE = 20.0
_POLL = 0.02
