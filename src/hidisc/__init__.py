"""hidisc."""
