"""The life of every output folder: `artefact` (begin, finish, open, verify), `checksums`, `files`, `lock`."""
