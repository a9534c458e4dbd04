# SPDX-License-Identifier: Apache-2.0
"""What the kinds of Kubeflow's training-operator v1 share. Each of these kinds is a `Framework` on top of this package.

The names, defaults, variables and texts are those of training-operator 1.9.4, because programs search for them.
"""
