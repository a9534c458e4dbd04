# SPDX-License-Identifier: Apache-2.0
"""stub"""
class Outside:
    pass
