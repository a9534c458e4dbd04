# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes engine: it implements the ports of `runtime` with a real API server. Start reading at `cluster`.

`config` finds the server and the user, `auth` provides the credentials, `session` keeps connections open, and `http`
sends requests.
"""
