"""Thousands of mangled inputs and kills, each a function of a seed, and judges that say what fell through."""
