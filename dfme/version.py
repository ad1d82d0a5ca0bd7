"""The version of this installation."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dfme")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"
