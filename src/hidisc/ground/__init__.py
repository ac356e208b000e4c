"""What every stage stands on: errors, names, seeds, files and their checksums, tables, tasks, the machine."""
