# SPDX-License-Identifier: Apache-2.0
"""The scheduler of the embedded engine: `placement` decides which pod gets which node; `scheduler` binds the pods."""
