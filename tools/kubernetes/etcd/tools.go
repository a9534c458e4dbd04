// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names what is built for tests on a real control plane; it is never compiled itself.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
