# SPDX-License-Identifier: Apache-2.0
"""What to install: structural schemas from the kinds' types (`schema`), whole CRDs around them (`manifests`), who may
do what (`rights`, `agents`), the operator's pods (`deployment`), and all of it in its order (`install`).
"""
