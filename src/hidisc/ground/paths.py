"""AnyPath: how callers may name a file or folder; every door of the API makes a Path of it first."""

import os

AnyPath = str | os.PathLike[str]
