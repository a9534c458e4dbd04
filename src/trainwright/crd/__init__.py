# SPDX-License-Identifier: Apache-2.0
"""What to install: structural schemas from the kinds' types (`schema`), whole CRDs around them (`manifests`), who may
do what (`rbac`), and all of it with the operator's pods, in its order (`install`).
"""
