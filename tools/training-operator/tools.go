// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names the program that `go build` builds here, so that `go mod tidy` keeps its modules.
package tools

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
