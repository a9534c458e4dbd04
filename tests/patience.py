# SPDX-License-Identifier: Apache-2.0
"""How long a test waits for something that should happen. A busy machine needs many times what a quiet one does."""

#: Seconds. What a test waits for takes a few seconds at most, so a test only ever waits this long when it fails.
#: What must not happen (a grace period that is not cut short, a sleep that is not ended) takes longer in the tests.
PATIENCE = 120.0
