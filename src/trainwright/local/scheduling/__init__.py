# SPDX-License-Identifier: Apache-2.0
"""Which pod goes to which node. `placement` decides, purely; `scheduler` watches, asks it, and binds."""
