# SPDX-License-Identifier: Apache-2.0
"""Every exception of ours, as one tree. Problems of a manifest are values (`model.problem`), not exceptions.

    TrainwrightError
    ├── ManifestError        text that cannot be read as manifests at all      exit code 2
    │   └── MalformedError   the same, with its file and line (`manifest.text`)
    └── UsageError           a command line that asks for the impossible       exit code 2

The command line turns each into one line on stderr and its exit code. Only `validate` catches one itself: a file that
cannot be read must not keep it from the next.
"""


class TrainwrightError(Exception):
    """Something a person should read; its text is complete."""

    exit_code = 3


class ManifestError(TrainwrightError):
    """The text is not a manifest: unreadable, too large, not YAML, or YAML nobody should expand."""

    exit_code = 2


class UsageError(TrainwrightError):
    """The command was asked for something it cannot do."""

    exit_code = 2
