"""A file per library that reads slides. `slides/reader.py` finds the classes in them and asks each what it takes."""
