"""One file per verb, read top to bottom: load, build, run, save. The command line and Python call the same ones."""
