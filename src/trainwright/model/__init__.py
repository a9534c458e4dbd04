# SPDX-License-Identifier: Apache-2.0
"""Values: frozen structs without behaviour beyond derived properties. Every other package uses them."""
