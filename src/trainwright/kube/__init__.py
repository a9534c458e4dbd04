# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes engine: it implements the ports of `runtime` with a real API server. Start reading at `cluster`.

`config` finds the server and the user, `auth` makes the credentials, `session` keeps the connections, and `http` sends
the requests.
"""
