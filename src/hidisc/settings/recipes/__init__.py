"""Recipes: YAML files of settings, each opening with its purpose, command, machine and time."""
