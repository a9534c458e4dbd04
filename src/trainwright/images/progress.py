# SPDX-License-Identifier: Apache-2.0
"""What a pull or a load reports while it works. `cli.images_progress` shows it."""

from typing import Protocol


class ImageProgress(Protocol):
    """Receives the progress of one image. `downloaded` comes from several threads."""

    def begin(self, image: str, layers: int, missing: int, size: int) -> None:
        """The image has so many layers; the missing ones have `size` compressed bytes."""

    def downloaded(self, number: int) -> None:
        """So many more bytes are here. The number is negative if a download starts again."""

    def unpacked(self, number: int) -> None:
        """So many more compressed bytes are unpacked."""

    def note(self, text: str) -> None:
        """Something that the user should know."""


class SilentProgress:
    """Shows nothing."""

    def begin(self, image: str, layers: int, missing: int, size: int) -> None:
        """Do nothing."""

    def downloaded(self, number: int) -> None:
        """Do nothing."""

    def unpacked(self, number: int) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
