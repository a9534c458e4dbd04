# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes engine: the ports of `runtime` on a real API server. Start at `cluster`.

`config` finds the server and who we are, `http` speaks to it, `watch` follows it. Nothing else knows aiohttp.
"""
