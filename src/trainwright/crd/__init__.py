# SPDX-License-Identifier: Apache-2.0
"""What is installed on a cluster: CRDs with their schemas (`schema`), roles (`rbac`), and all manifests (`install`).

`compare` compares an installed CRD with ours.
"""
