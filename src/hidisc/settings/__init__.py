"""Every setting of every verb, its default and its meaning; each is read somewhere (`tests/test_config.py`)."""
