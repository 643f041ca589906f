"""The versions of installed packages, which images must have, too."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from paceline.interfaces.emit.docker import PACKAGES


def installed() -> dict[str, str]:
    """Return the version of Paceline and of every package that an image needs, as far as they are installed."""
    versions: dict[str, str] = {}
    for name in ("paceline", *PACKAGES, "ray"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
